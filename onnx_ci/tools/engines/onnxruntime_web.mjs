// node onnxruntime_web.mjs PACKAGE FILE: loads the file, and answers that with a line of JSON on stdout. Then each line that it
// reads is a run: {name: {dims, type, data: base64}}, and the answer is {outputs: [{dims, type, data}]} or {error}.
import { createRequire } from 'node:module';
import fs from 'node:fs';
import readline from 'node:readline';

console.log = console.info = console.debug = console.error; // stdout is for answers
const [folder, file] = process.argv.slice(2);
const ort = createRequire(`${folder}/package.json`)('onnxruntime-web');
ort.env.wasm.numThreads = 1;
ort.env.logLevel = 'fatal';

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, float16: Uint16Array, bool: Uint8Array,
  int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array,
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array,
};

function answer(value) {
  const line = Buffer.from(`${JSON.stringify(value)}\n`);
  for (let written = 0; written < line.length;) written += fs.writeSync(1, line, written);
}

function received({ dims, type, data }) {
  if (!(type in ARRAYS)) throw new Error(`onnxruntime-web has no tensors of ${type}`);
  const bytes = Uint8Array.from(Buffer.from(data, 'base64'));
  return new ort.Tensor(type, new ARRAYS[type](bytes.buffer), dims);
}

function sent({ dims, type, data }) {
  return { dims, type, data: Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString('base64') };
}

let session;
try {
  session = await ort.InferenceSession.create(fs.readFileSync(file));
  answer({});
} catch (error) {
  answer({ error: String(error.message ?? error) });
  process.exit();
}
for await (const line of readline.createInterface({ input: process.stdin })) {
  try {
    const feeds = Object.fromEntries(Object.entries(JSON.parse(line)).map(([name, value]) => [name, received(value)]));
    const results = await session.run(feeds);
    answer({ outputs: session.outputNames.map((name) => sent(results[name])) });
  } catch (error) {
    answer({ error: String(error.message ?? error) });
  }
}
