#!/usr/bin/env bash
# Installs the Debian packages the CPU build needs; asks for nothing when all are there.
set -euo pipefail
packages=(cmake ninja-build g++ pkgconf python3-venv libgtest-dev nlohmann-json3-dev
          libcli11-dev libfmt-dev libpcre2-dev)
missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
refuse() { echo "error: $1 these Debian packages are missing: ${missing[*]}" >&2; exit 1; }
command -v apt-get >/dev/null || refuse "no apt-get on this machine;"
sudo=""
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || refuse "need root or sudo to install;"
  sudo=sudo
fi
echo "installing: ${missing[*]}" >&2
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
