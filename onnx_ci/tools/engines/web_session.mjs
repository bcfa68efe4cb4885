// What a page and Node do alike: they load a file, and answer that with {}. Then each request is a run,
// {name: {dims, type, data: base64}}, and the answer is {outputs: [{dims, type, data}]} or {error}.

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, float16: Uint16Array, bool: Uint8Array,
  int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array,
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array,
};

function received(ort, { dims, type, data }) {
  if (!(type in ARRAYS)) throw new Error(`onnxruntime-web has no tensors of ${type}`);
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  return new ort.Tensor(type, new ARRAYS[type](bytes.buffer), dims);
}

function sent({ dims, type, data }) {
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  let text = '';
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return { dims, type, data: btoa(text) };
}

const words = (error) => ({ error: String(error?.message ?? error) });

export async function serve(ort, contents, provider, requests, answer) {
  ort.env.wasm.numThreads = 1;
  ort.env.logLevel = 'fatal';
  const load = () => ort.InferenceSession.create(contents, { executionProviders: [provider] });
  let session;
  try {
    session = await load();
    await answer({});
  } catch (error) {
    await answer(words(error));
    return;
  }
  for await (const request of requests) {
    try {
      const feeds = Object.fromEntries(Object.entries(JSON.parse(request)).map(([name, value]) => [name, received(ort, value)]));
      const results = await session.run(feeds);
      await answer({ outputs: session.outputNames.map((name) => sent(results[name])) });
    } catch (error) {
      if (provider === 'webgpu') session = await load(); // after an error, one does not answer (onnxruntime-web 1.30)
      await answer(words(error));
    }
  }
}
