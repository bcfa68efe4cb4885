// node chromium.mjs PACKAGE FILE CHROMIUM: web_session.mjs in a page of headless Chromium, with WebGPU: on the GPU, or on Chromium's
// adapter of software. Requests and answers are lines on stdin and stdout, which the page fetches from here.
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import readline from 'node:readline';

const [folder, file, chromium] = process.argv.slice(2);
const secret = `/${randomUUID()}/`; // no other program of this machine can talk to the page's server
const TYPES = { html: 'text/html', mjs: 'text/javascript', wasm: 'application/wasm' };
const PAGE = `<script type="module">
  const post = (value) => fetch('answer', { method: 'POST', body: JSON.stringify(value) });
  async function* requests() {
    for (;;) yield await (await fetch('request')).text();
  }
  try {
    const ort = await import('./dist/ort.webgpu.bundle.min.mjs');
    const { serve } = await import('./web_session.mjs');
    if (!(await navigator.gpu?.requestAdapter())) throw new Error('Chromium has no adapter for WebGPU');
    const contents = new Uint8Array(await (await fetch('file')).arrayBuffer());
    await serve(ort, contents, 'webgpu', requests(), post);
  } catch (error) {
    await post({ error: String(error.message) });
  }
</script>`;

const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
let words = ''; // of Chromium
const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'onnx-ci-chromium-'));
let browser;

function end() {
  const remove = () => {
    fs.rmSync(profile, { recursive: true, force: true });
    process.exit();
  };
  browser?.removeAllListeners('close').on('close', remove).kill('SIGKILL') || remove();
}

async function contents(name) {
  if (name === '') return PAGE;
  if (name === 'file') return fs.readFileSync(file);
  if (name === 'web_session.mjs') return fs.readFileSync(new URL(name, import.meta.url));
  if (name === 'request') {
    const { value, done } = await lines.next();
    if (done) end();
    return value;
  }
  return fs.readFileSync(path.join(folder, 'dist', path.basename(name)));
}

const server = http.createServer(async (request, response) => {
  if (!request.url.startsWith(secret)) return void response.writeHead(404).end();
  const name = request.url.slice(secret.length);
  if (request.method === 'POST') {
    for await (const piece of request) process.stdout.write(piece);
    process.stdout.write('\n');
    return void response.end();
  }
  try {
    const body = await contents(name);
    response.writeHead(200, { 'Content-Type': TYPES[name.split('.').at(-1) || 'html'] ?? 'application/octet-stream' }).end(body);
  } catch {
    response.writeHead(404).end();
  }
});
server.requestTimeout = 0;
server.listen(0, '127.0.0.1', () => {
  const sandbox = process.getuid?.() === 0 ? ['--no-sandbox'] : []; // Chromium has none for root
  const options = ['--headless', ...sandbox, '--enable-unsafe-webgpu', '--enable-unsafe-swiftshader', `--user-data-dir=${profile}`];
  const address = `http://127.0.0.1:${server.address().port}${secret}`;
  browser = spawn(chromium, [...options, address], { stdio: ['ignore', 'ignore', 'pipe'] });
  browser.stderr.on('data', (piece) => { words = (words + piece).slice(-500); });
  browser.on('close', (code, signal) => {
    const last = words.trim().split('\n').at(-1);
    process.stdout.write(`${JSON.stringify({ error: `Chromium ended (${signal ?? code}): ${last}` })}\n`, end);
  });
});
process.stdin.on('end', end); // also while the page computes
