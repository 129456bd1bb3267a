#!/usr/bin/env bash
# Set up what a target of the Makefile needs: system packages first (fails at once where it may not install them), then .venv.
#
#   ./setup.sh python      .venv from requirements.lock, and the package, editable
#   ./setup.sh paper       that, and LaTeX, poppler, graphviz, iproute2
#   ./setup.sh cluster     that, and Slurm, munge, MariaDB
#   ./setup.sh box         Slurm, munge, MariaDB alone
#
# PYTHON=/path/to/python chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")"

PAPER="latexmk:latexmk kpsewhich:texlive-binaries siunitx.sty:texlive-science cleveref.sty:texlive-latex-extra
  booktabs.sty:texlive-latex-recommended phvr8t.tfm:texlive-fonts-recommended pdftotext:poppler-utils dot:graphviz ip:iproute2"
BOX="sbatch:slurm-client slurmctld:slurmctld slurmd:slurmd slurmdbd:slurmdbd munged:munge mariadbd:mariadb-server"

die() { echo "fivedim: $*" >&2; exit 2; }

found() { # a program on PATH or in sbin, or a file of the TeX tree
  case $1 in
    *.sty | *.tfm) kpsewhich "$1" > /dev/null 2>&1 ;;
    *) PATH=$PATH:/usr/sbin:/sbin command -v "$1" > /dev/null ;;
  esac
}

lacking() { # THING:PACKAGE... -> the packages of the things that are not there
  local pair
  for pair; do found "${pair%%:*}" || echo "${pair#*:}"; done
}

pick_python() { # the first interpreter that really runs and is new enough (a pyenv shim may be there and not run)
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11; do
    "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2> /dev/null && echo "$candidate" && return
    [ -z "${PYTHON:-}" ] || break
  done
  die "no usable Python (${PYTHON:-python3} is $("${PYTHON:-python3}" -V 2>&1 | tail -1 || true)): install Python 3.11, 3.12 or 3.13, or name one with PYTHON=/path/to/python"
}

venv_package() { # Debian keeps ensurepip in a package of its own
  "$1" -c 'import ensurepip, venv' 2> /dev/null || "$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
}

may_install() { # PACKAGE... whether apt can, asked before anything long starts; sets sudo
  sudo=""
  [ $# -gt 0 ] || return 0
  command -v apt-get > /dev/null || die "needs $*: install them (these are Debian's names) and run this again"
  [ "$(id -u)" = 0 ] || sudo="sudo -n"
  [ -z "$sudo" ] || sudo -n true 2> /dev/null || die "needs $*: run 'sudo apt-get install --no-install-recommends $*', then this again"
}

install_system() { # PACKAGE... by apt, with no service started
  [ $# -gt 0 ] || return 0
  local log
  echo "fivedim: installing $*"
  log=$(mktemp)
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' | $sudo tee /usr/sbin/policy-rc.d > /dev/null
    $sudo chmod +x /usr/sbin/policy-rc.d
    trap "$sudo rm -f /usr/sbin/policy-rc.d" EXIT
  fi
  { $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } > "$log" 2>&1 \
    || { tail -5 "$log" >&2; die "apt-get could not install $*: its words are above, all of them in $log"; }
  rm -f "$log"
}

make_venv() { # a new .venv where there is none that runs, or where it was made in a folder of another name
  local made_in
  made_in=$(head -1 .venv/folder 2> /dev/null || echo "$PWD")
  if ! .venv/bin/python -c "" 2> /dev/null || [ "$made_in" != "$PWD" ]; then
    "$1" -m venv --clear .venv
  fi
  echo "$PWD" > .venv/folder
}

install_python() { # bring .venv to the lock, where the lock or the package's metadata changed since
  local lock pip
  [ ! -L .venv ] || return 0 # a linked environment is another checkout's
  make_venv "$1"
  lock=$(cat requirements.lock pyproject.toml | cksum)
  [ "$(cat .venv/lock 2> /dev/null)" != "$lock" ] || return 0
  echo "fivedim: installing the packages of requirements.lock into .venv (some minutes)"
  # no bytecode: of 12,000 modules a tenth is ever imported, and compiled then; all of them would take two minutes
  pip=(.venv/bin/python -m pip --disable-pip-version-check -qq install --no-build-isolation --no-compile)
  # setuptools first: what comes as source is built with it, so that nothing outside the lock is ever installed
  "${pip[@]}" -c requirements.lock setuptools packaging \
    && DS_BUILD_OPS=0 "${pip[@]}" -r requirements.lock \
    && "${pip[@]}" --no-deps -e . || die "pip failed, its words are above: run this again to go on"
  echo "$lock" > .venv/lock
}

case ${1:-} in
  python) things="" ;;
  paper) things=$PAPER ;;
  cluster) things="$PAPER $BOX" ;;
  box) things=$BOX ;;
  *) die "setup.sh ${1:-}: say python, paper, cluster or box" ;;
esac
packages=$(lacking $things)
venv=""
if [ "$1" != box ]; then
  python=$(pick_python)
  [ -x .venv/bin/python ] || venv=$(venv_package "$python")
fi
may_install $packages $venv
install_system $venv
trap wait EXIT # a failure of one ends after the other, never under it
install_system $packages & # beside pip: each waits for the network and the disk more than for a core
[ "$1" = box ] || install_python "$python"
wait "$!"
[ -L .venv ] || [ "$1" = box ] || touch ".venv/ready-$1"
