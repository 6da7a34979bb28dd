# needs: node
cat >t.mjs <<'END'
import fs from 'fs'; import zlib from 'zlib'; import crypto from 'crypto'; import readline from 'readline';
import {pipeline} from 'stream/promises'; import {Transform, Readable} from 'stream';
fs.writeFileSync('in', Buffer.alloc(5e6, 'some text that repeats\n'));
await pipeline(fs.createReadStream('in'), zlib.createGzip(), fs.createWriteStream('in.gz'));
await pipeline(fs.createReadStream('in.gz'), zlib.createGunzip(), fs.createWriteStream('out'));
const hash = crypto.createHash('sha256'); await pipeline(fs.createReadStream('out'), hash); console.log(hash.digest('hex'));
let lines = 0; for await (const _ of readline.createInterface({input: fs.createReadStream('in')})) lines++; console.log(lines);
const up = new Transform({transform(c, _, done) { done(null, c.toString().toUpperCase()) }});
await pipeline(Readable.from(['a', 'b', 'c']), up, fs.createWriteStream('up')); console.log(fs.readFileSync('up', 'utf8'));
END
node t.mjs
