# needs: node
cat >t.mjs <<'END'
import {Worker, isMainThread, parentPort, workerData} from 'worker_threads'; import {fileURLToPath} from 'url';
if (isMainThread) {
  const shared = new SharedArrayBuffer(8), counter = new Int32Array(shared), answers = [];
  await Promise.all([0, 1, 2, 3].map(n => new Promise((resolve, reject) => {
    const w = new Worker(fileURLToPath(import.meta.url), {workerData: {n, shared}});
    w.on('message', m => answers.push(m)); w.on('error', reject); w.on('exit', resolve);
  })));
  console.log(answers.sort(), counter[0], Atomics.wait(counter, 1, 0, 20));
} else {
  const counter = new Int32Array(workerData.shared);
  for (let i = 0; i < 10000; i++) Atomics.add(counter, 0, 1);
  let f = (n) => n < 2 ? n : f(n - 1) + f(n - 2);
  parentPort.postMessage(`worker ${workerData.n}: ${f(20)}`);
}
END
node t.mjs
