# needs: node npm
for p in left right; do
    mkdir -p src/$p
    echo "{\"name\": \"$p\", \"version\": \"1.0.0\", \"main\": \"i.js\", \"bin\": {\"$p-say\": \"cli.js\"}}" >src/$p/package.json
    echo "module.exports = '$p';" >src/$p/i.js
    printf '#!/usr/bin/env node\nconsole.log("%s says");\n' $p >src/$p/cli.js
    (cd src/$p && npm pack --silent --offline --pack-destination ../..)
done
mkdir app && cd app
echo '{"name": "app", "version": "1.0.0", "scripts": {"start": "left-say && node -p \"require(\\\"left\\\") + require(\\\"right\\\")\""}}' >package.json
npm install --offline --no-audit --no-fund --loglevel=error ../left-1.0.0.tgz ../right-1.0.0.tgz | sed 's/ in [0-9.]*m\?s$//'
npm ls
npm run --silent start
npm ci --offline --no-audit --no-fund --loglevel=error | sed 's/ in [0-9.]*m\?s$//'
find node_modules | sort
