#!/bin/sh
# vendor.sh PACKAGE@VERSION ...: copies the libraries of the live page from npm into the repository, each with its
# licence. A browser gets these files from the router: nothing is built, and nothing is loaded from another host.
set -eu
cd "$(dirname "$0")/../.."
npm=build/vendor/node_modules page=router/control/page/vendor tests=tests/browser/vendor
rm -rf build/vendor "$page" "$tests"
mkdir -p build/vendor "$page" "$tests"
npm install --prefix build/vendor --no-save --ignore-scripts --no-audit --no-fund --loglevel=error "$@"

# uPlot's small build is a script, which becomes a module; the others name each other by package, here by file.
{ cat $npm/uplot/dist/uPlot.iife.min.js; echo 'export default uPlot;'; } > $page/uplot.js
cp $npm/uplot/dist/uPlot.min.css $page/uplot.css
sed '/^\/\/# sourceMappingURL/d' $npm/preact/dist/preact.mjs > $page/preact.js
sed -e '/^\/\/# sourceMappingURL/d' -e 's/from"preact"/from"\.\/preact.js"/' $npm/preact/hooks/dist/hooks.mjs > $page/hooks.js
cp $npm/htm/dist/htm.mjs $page/htm.js
cp $npm/axe-core/axe.min.js $tests/axe.min.js
for name in uplot preact htm; do cp $npm/$name/LICENSE $page/$name.LICENSE.txt; done
cp $npm/axe-core/LICENSE $tests/axe-core.LICENSE.txt
{
  echo "From npm, by 'make vendor'. Licences beside the files."
  for package in "$@"; do echo "$package"; done | grep -v axe-core
} > $page/versions.txt
