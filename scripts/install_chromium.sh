#!/bin/sh
# Install Chromium where tests need a browser, there is none, and we may (root, with apt-get).
# Never fails by itself: without a browser the tests say what is missing.
cd "$(dirname "$0")/.." || exit 0
grep -rqs --include='*.py' 'mark\.browser' tests || exit 0
for name in chromium chromium-browser google-chrome; do
  command -v "$name" > /dev/null && exit 0
done
[ "$(id -u)" = 0 ] && command -v apt-get > /dev/null || exit 0
echo "Installing Chromium for the tests that need a browser (once)"
export DEBIAN_FRONTEND=noninteractive
mkdir -p build
{ apt-get update && apt-get install -y --no-install-recommends chromium fonts-dejavu-core; } > build/apt.log 2>&1 ||
  { echo "Chromium was not installed; the end of build/apt.log:"; tail -n 5 build/apt.log; } >&2
exit 0
