// node onnxruntime_web.mjs PACKAGE FILE: web_session.mjs in Node. Requests and answers are lines on stdin and stdout.
import { createRequire } from 'node:module';
import fs from 'node:fs';
import readline from 'node:readline';
import { serve } from './web_session.mjs';

console.log = console.info = console.debug = console.error; // stdout is for answers
const [folder, file] = process.argv.slice(2);

function answer(value) {
  const line = Buffer.from(`${JSON.stringify(value)}\n`);
  for (let written = 0; written < line.length;) written += fs.writeSync(1, line, written);
}

const ort = createRequire(`${folder}/package.json`)('onnxruntime-web');
await serve(ort, fs.readFileSync(file), 'wasm', readline.createInterface({ input: process.stdin }), answer);
process.exit();
