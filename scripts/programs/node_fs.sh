# needs: node
cat >t.mjs <<'END'
import fs from 'fs'; import fsp from 'fs/promises'; import crypto from 'crypto';
await fsp.mkdir('a/b/c', {recursive: true});
await Promise.all(Array.from({length: 200}, (_, i) => fsp.writeFile(`a/b/f${i}`, 'x'.repeat(i * 100))));
console.log((await fsp.readdir('a', {recursive: true})).length, (await fsp.stat('a/b/f9')).size);
await fsp.cp('a', 'copy', {recursive: true});
await fsp.rename('copy/b/f1', 'copy/b/g1'); await fsp.symlink('b/f2', 'a/link'); await fsp.link('a/b/f3', 'a/hard');
console.log(await fsp.readlink('a/link'), fs.readFileSync('a/link').length, fs.lstatSync('a/hard').nlink);
const h = await fsp.open('a/b/f5', 'r+'); await h.write('hello', 10); await h.truncate(20); await h.sync(); await h.utimes(1, 2);
console.log((await h.readFile()).toString(), (await h.stat()).mtimeMs); await h.close();
for (const bad of ['none', 'a/b/f1/x']) await fsp.readFile(bad).catch(e => console.log(e.code));
await fsp.mkdir('a').catch(e => console.log(e.code)); await fsp.rmdir('a').catch(e => console.log(e.code));
fs.appendFileSync('log', 'one\n'); fs.appendFileSync('log', 'two\n'); console.log(fs.readFileSync('log', 'utf8'));
const seen = new Promise(r => { const w = fs.watch('.', (e, f) => { if (f === 'new') { w.close(); r(f) } }) });
fs.writeFileSync('new', ''); console.log('watched', await seen);
await fsp.rm('a', {recursive: true}); console.log(fs.existsSync('a'), fs.readdirSync('.').sort().join());
END
node t.mjs
