# needs: node
cat >t.mjs <<'END'
import {exec, execFileSync, spawn, spawnSync, fork} from 'child_process'; import {promisify} from 'util'; import fs from 'fs';
console.log(await promisify(exec)('echo out; echo err >&2'), execFileSync('seq', ['3']).toString());
console.log(spawnSync('sh', ['-c', 'exit 7']).status, spawnSync('none').error.code);
const cat = spawn('cat'); let n = 0; cat.stdout.on('data', c => n += c.length); cat.stdin.end(Buffer.alloc(1e6));
await new Promise(r => cat.on('close', r)); console.log(n);
const s = spawn('sleep', ['100']); s.kill('SIGTERM'); console.log(await new Promise(r => s.on('exit', (c, sig) => r([c, sig]))));
fs.writeFileSync('child.js', 'process.on("message", m => { process.send({twice: m * 2}); process.disconnect() })');
const f = fork('./child.js'); f.send(21); console.log(await new Promise(r => f.on('message', r)), await new Promise(r => f.on('exit', r)));
await promisify(exec)('sleep 10', {timeout: 50}).catch(e => console.log(e.killed, e.signal));
process.on('SIGUSR2', () => { console.log('signal'); clearInterval(t) }); const t = setInterval(() => {}, 1000); process.kill(process.pid, 'SIGUSR2');
END
node t.mjs
