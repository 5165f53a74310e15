#!/usr/bin/env bash
# Makes the Python environment of the tests: make_venv.sh DIR. Pinned packages from PyPI.
set -euo pipefail
dir=$1
[ -x "$dir/bin/pip" ] || /usr/bin/python3 -m venv "$dir"
echo "installing the Python packages of the tests" >&2
"$dir/bin/pip" install -q --disable-pip-version-check \
  -r "$(dirname "$0")/../python/requirements.txt"
