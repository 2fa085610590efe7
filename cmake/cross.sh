#!/bin/sh
# Makes what a machine of another kind needs to build for aarch64, and to run that under emulation. It starts from a bare Debian
# machine (12 or later, amd64), as root, and takes all from Debian: 2 GB for `build` in a minute, 1 GB for `test` in seven.
#
#   cmake/cross.sh build            GCC for aarch64; Rust with its library for aarch64, in build/cross/rust (Debian sid)
#   cmake/cross.sh test             qemu, and an emulated system with Python in build/cross/arm64 (Debian bookworm)
#   cmake/cross.sh in rust WORDS    runs a command in one of them, with the project's folders where they are
#
# Where rustup is at hand, `rustup target add aarch64-unknown-linux-gnu` does for Rust what `build` does.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cross=$root/build/cross

packages() {
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends "$@" > /dev/null
}

# system NAME SUITE ARCHITECTURE: a system of Debian in build/cross/NAME, which takes its place when it is complete.
system() {
    rm -rf --one-file-system "$cross/$1.new"
    debootstrap --variant=minbase --arch="$3" --include=ca-certificates "$2" "$cross/$1.new"
    # The signature of a mirror's snapshot may be past its date.
    printf 'Acquire::Check-Valid-Until "false";\nAcquire::Check-Date "false";\n' > "$cross/$1.new/etc/apt/apt.conf.d/99date"
}

inside() {
    chroot "$cross/$1.new" sh -euc "$2"
}

case $root in *[[:space:]]*) echo "expected a path without spaces, but found $root" >&2; exit 1 ;; esac
mkdir -p "$cross"
case "${1-}" in
build)
    packages debootstrap g++-12-aarch64-linux-gnu
    test -d "$cross/rust" && exit
    system rust sid amd64
    inside rust "dpkg --add-architecture arm64; apt-get -qq update
        apt-get -qq install --yes --no-install-recommends rustc cargo gcc libc6-dev libstd-rust-dev:arm64"
    mv "$cross/rust.new" "$cross/rust"
    ;;
test)
    packages debootstrap qemu-user-static binfmt-support
    mountpoint --quiet /proc/sys/fs/binfmt_misc || mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    update-binfmts --enable qemu-aarch64
    test -d "$cross/arm64" && exit
    system arm64 bookworm arm64
    inside arm64 "apt-get -qq update
        apt-get -qq install --yes --no-install-recommends python3 g++ make"
    mv "$cross/arm64.new" "$cross/arm64"
    ;;
in)
    place=$cross/$2
    shift 2
    # The mounts are this command's own, and go with it. There is no network.
    # shellcheck disable=SC2016  # Expanded by the inner shell.
    exec unshare --mount sh -euc '
        place=$1 here=$2 shared=$3
        shift 3
        mount -t proc proc "$place/proc"
        mount --rbind /sys "$place/sys"
        mount --rbind /dev "$place/dev"
        for folder in $shared; do
            mkdir -p "$folder" "$place$folder"
            mount --bind "$folder" "$place$folder"
        done
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
        exec chroot "$place" sh -c "cd \"\$0\" && exec \"\$@\"" "$here" "$@"
    ' sh "$place" "$PWD" "$root ${CARGO_HOME:-$HOME/.cargo} ${CARGO_TARGET_DIR-} /tmp" "$@"
    ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
