#!/bin/sh
# Install Unbounded Bootstrap on a package host, and start it. Run it as often as you like, also from cloud-init.
#
#   install.sh --url URL --sha256 HEX [--config FILE] [OPTION...]
#   install.sh --base-url URL --version VERSION --sha256 HEX [OPTION...]
#
# It fetches the tar of a release (unbounded-VERSION-linux-ARCH.tar.gz), asks the admission in it whether this host may be
# installed with this configuration, and only then places the programs below /opt/unbounded and the units. What is there
# and right is left as it is. Another release goes into the slot that is not in use, and one rename of the link `current`
# switches to it; `last-good` stays on the release before. Cut off at any point, it is finished by the next run.
#
# It stages below /var/lib/unbounded, because /tmp may be noexec, and leaves nothing there.
set -eu
unset TAR_OPTIONS GZIP
PATH=${PATH:-/usr/bin:/bin}:/usr/sbin:/sbin # restorecon

PREFIX=/opt/unbounded # the unit files in the tar name it
STATE=/var/lib/unbounded
CONFIG=/etc/unbounded/agent/config.json
UNITS=/etc/systemd/system
CATALOG=/usr/local/lib/systemd/catalog
HELD=$UNITS/unbounded-boot.service.d/10-reset.conf

usage() {
	cat <<'END'
usage: install.sh --url URL --sha256 HEX [OPTION...]

  --url URL        the tar of a release: http, https, file, or a path ($AGENT_URL)
  --sha256 HEX     its SHA-256 ($AGENT_SHA256)
  --base-url URL   instead of --url: the folder of the release ($AGENT_BASE_URL) ...
  --version V      ... and its version: URL/unbounded-V-linux-ARCH.tar.gz is fetched ($AGENT_VERSION)
  --config FILE    the configuration ($UNBOUNDED_AGENT_CONFIG_FILE); a file other than
                   /etc/unbounded/agent/config.json is copied there, mode 0600
  --no-wait        have the boot service start the bootstrap, and again until it has succeeded,
                   and do not wait for that
  --no-start       place everything, start nothing
  --no-enable      do not start the bootstrap at boot

Other prefixes than /opt/unbounded: `make install PREFIX=DIR`.
Exit status: 0 done; 1 failed, a retry may help; 64 wrong usage; 75 somebody else is at work; 77 not root; 78 refused.
END
}

say() { printf 'install.sh: %s\n' "$*"; }

# die STATUS TEXT: one line, and the end.
die() {
	status=$1
	shift
	printf 'install.sh: %s\n' "$*" >&2
	exit "$status"
}

parse() {
	config=${UNBOUNDED_AGENT_CONFIG_FILE:-} url=${AGENT_URL:-} sha256=${AGENT_SHA256:-}
	base=${AGENT_BASE_URL:-} version=${AGENT_VERSION:-}
	start=wait enable=yes
	while [ $# -gt 0 ]; do
		case $1 in
		--config | --url | --sha256 | --base-url | --version)
			[ $# -gt 1 ] || die 64 "$1 wants a value; see --help"
			case $1 in
			--config) config=$2 ;;
			--url) url=$2 ;;
			--sha256) sha256=$2 ;;
			--base-url) base=$2 ;;
			--version) version=$2 ;;
			esac
			shift
			;;
		--no-wait) start=no-wait ;;
		--no-start) start=no ;;
		--no-enable) enable=no ;;
		--prefix | --prefix=*) die 64 "the units in the tar are for $PREFIX: for another prefix use make install PREFIX=DIR" ;;
		--help | -h)
			usage
			exit 0
			;;
		*) die 64 "unknown argument: $1; see --help" ;;
		esac
		shift
	done
	case $config in
	'' | /*) ;;
	*) config=./$config ;; # not an option of anything
	esac
	sha256=$(printf %s "$sha256" | tr A-F a-f)
	case $sha256 in
	'') die 64 "--sha256 is missing: the SHA-256 of the tar, from the release's SHA256SUMS" ;;
	*[!0-9a-f]*) die 64 "--sha256 is not a SHA-256 in hexadecimal digits" ;;
	esac
	[ ${#sha256} -eq 64 ] || die 64 "--sha256 has ${#sha256} digits, want 64"
	[ -n "$url" ] || [ -n "$base" ] || die 64 "--url is missing, and so is --base-url"
	[ -n "$url" ] || [ -n "$version" ] || die 64 "--version is missing: --base-url needs it"
}

# surroundings looks at what this script itself needs of the host.
surroundings() {
	[ "$(id -u)" -eq 0 ] || die 77 "run as root"
	[ -d /run/systemd/system ] || die 78 "this host was not booted with systemd"
	case $(uname -m) in
	x86_64) arch=amd64 ;;
	aarch64) arch=arm64 ;;
	*) die 78 "no programs for the architecture $(uname -m): want x86_64 or aarch64" ;;
	esac
	[ -n "$url" ] || url=${base%/}/unbounded-$version-linux-$arch.tar.gz
	missing=
	for program in tar gzip sha256sum flock mktemp install sync stat systemctl; do
		command -v "$program" >/dev/null || missing="$missing $program"
	done
	case $url in
	http://* | https://*) command -v curl >/dev/null || command -v wget >/dev/null || missing="$missing curl" ;;
	file:///* | /*) ;;
	*) die 64 "--url is not http, https, file or an absolute path" ;;
	esac
	[ -z "$missing" ] || die 78 "this host lacks what the installation needs: install$missing"
}

# alone waits for another run. The lock is on a folder, so that no file is left, and on one that nobody else can open; the
# kernel lets go of it with the process.
alone() {
	if [ -d /root ]; then exec 9</root; else exec 9</run; fi
	flock -n 9 && return
	say "another installation is at work: waiting for its end"
	flock -w 900 9 || die 75 "another installation has been at work for 15 minutes: see what it waits for, and try again"
}

# prepare makes the folder to work in, and removes those of killed runs: they are nobody's, since we are alone.
prepare() {
	umask 022
	theirs=no
	for found in "$STATE"/* "$STATE"/.[!.]*; do
		case $found in
		"$STATE"/install.??????) ;;
		*) if [ -e "$found" ]; then theirs=yes; fi ;;
		esac
	done
	if [ -d "$STATE" ] && ! ls -d "$STATE"/install.?????? >/dev/null 2>&1; then theirs=yes; fi
	mkdir -p "$STATE" || die 1 "$STATE cannot be made: see above"
	rm -rf "$STATE"/install.??????
	stage=
	trap cleanup EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 141' PIPE
	trap 'exit 143' TERM
	stage=$(mktemp -d "$STATE/install.XXXXXX") || die 1 "$STATE cannot be written to: see above"
	printf '#!/bin/sh\n' >"$stage/probe"
	chmod 0700 "$stage/probe"
	"$stage/probe" 2>/dev/null || die 78 "programs cannot run below $STATE: its file system is mounted noexec; mount it without"
}

# cleanup leaves nothing of ours in the state folder, nor the folder if there was none.
cleanup() {
	[ -z "$stage" ] || rm -rf "$stage"
	if [ "$theirs" = no ]; then rmdir "$STATE" 2>/dev/null || true; fi
}

# shown is the URL without what may be a secret: a user and its password, a signature in the query.
shown() { printf %s "${url%%\?*}" | sed 's|//.*@|//|'; }

# get goes on where an earlier try was cut off, and says why it failed. The URL is not an argument: all users see those.
get() {
	ulimit -f 2097152 # blocks of 512 bytes: far more than any release has
	if command -v curl >/dev/null; then
		printf 'url = "%s"\n' "$url" | curl -K - -gfsSL -C - --connect-timeout 20 --speed-limit 1 --speed-time 60 -o "$stage/tar" 2>&1 9<&-
	else
		# What wget says has the URL in it.
		printf '%s\n' "$url" | wget -i - -q -c -t 1 -T 60 -O "$stage/tar" 9<&- || { status=$? && echo "wget ended with $status" && return $status; }
	fi
}

fetch() {
	case $url in
	file://*) cp "${url#file://}" "$stage/tar" || die 1 "the tar cannot be read: see above; nothing was changed" ;;
	/*) cp "$url" "$stage/tar" || die 1 "the tar cannot be read: see above; nothing was changed" ;;
	*)
		pause=1 had=0
		while :; do
			status=0
			why=$(get) || status=$?
			[ $status -ne 0 ] || break
			why=$(printf %s "$why" | tail -n 1 | cut -c 1-200)
			case $status in
			3 | 23 | 153) die 1 "download $(shown): ${why:-it cannot be written}: $STATE is full, or this is no release; nothing was changed" ;;
			esac
			[ $pause -lt 32 ] || die 1 "download $(shown): ${why:-no answer}; nothing was changed"
			has=$(stat -c %s "$stage/tar" 2>/dev/null) || has=0
			# Nothing came: it may be that the server cannot go on where it was cut off. All over again.
			if [ "$has" -le "$had" ]; then rm -f "$stage/tar"; fi
			had=$has
			sleep $pause
			pause=$((pause * 2))
		done
		;;
	esac
	is=$(sha256sum <"$stage/tar")
	is=${is%% *}
	[ "$is" = "$sha256" ] || die 78 "the file at $(shown) has SHA-256 $is, want $sha256; nothing was changed"
}

# unpack takes only what a release is made of.
unpack() {
	tar -P -tzf "$stage/tar" >"$stage/names" || die 78 "$(shown) is not a tar of a release: see above; nothing was changed"
	while read -r name; do
		name=${name#./}
		case /$name/ in
		*/../*) die 78 "$(shown) is not a release: $name leads out of it; nothing was changed" ;;
		esac
		case $name in
		'' | opt/ | opt/unbounded/* | etc/ | etc/systemd/ | etc/systemd/system/ | etc/systemd/system/unbounded*) ;;
		usr/ | usr/local/ | usr/local/lib/ | usr/local/lib/systemd/ | usr/local/lib/systemd/catalog/*) ;;
		*) die 78 "$(shown) is not a release: it has $name in it; nothing was changed" ;;
		esac
	done <"$stage/names"
	mkdir "$stage/tree"
	tar -xzf "$stage/tar" -C "$stage/tree" --no-same-owner || die 1 "the tar cannot be unpacked: see above; nothing was changed"
	rm "$stage/tar"
	new=$stage/tree$PREFIX/slots/blue
	for file in "$new"/* "$stage/tree$PREFIX/manifest" "$stage/tree$PREFIX"/doc/* "$stage/tree$UNITS"/* "$stage/tree$CATALOG"/*; do
		if [ -L "$file" ] || [ ! -f "$file" ]; then
			die 78 "$(shown) is not a release for $PREFIX: it has no regular file ${file#"$stage/tree"}; nothing was changed"
		fi
	done
	[ -x "$new/unbounded-admission" ] || die 78 "$(shown) is not a release for $PREFIX: its unbounded-admission is missing; nothing was changed"
}

# admission of the new release decides. It writes nothing.
admitted() {
	set -- check --prefix "$PREFIX"
	[ -z "$config" ] || set -- "$@" --config "$config"
	status=0
	why=$("$new/unbounded-admission" "$@" 2>&1) || status=$?
	case $status in
	0) say "$why" ;;
	126 | 127) die 78 "the programs of this release do not run here: is it for another architecture than $arch? nothing was changed" ;;
	*) die $status "$why; nothing was changed" ;;
	esac
}

# put FILE PATH MODE: durable, in one rename, and only if anything differs; notes it in $changed.
put() { place "$@" || die 1 "$2 cannot be written: see above"; }

place() {
	if [ -f "$2" ] && [ ! -L "$2" ] && [ "$(sum "$1")" = "$(sum "$2")" ] && [ "$(stat -c '%a %u:%g' "$2")" = "$3 0:0" ]; then
		return
	fi
	temp=${2%/*}/.${2##*/}.unbounded-tmp-install # a name that reset sweeps away
	install -o 0 -g 0 -m "0$3" "$1" "$temp" && sync "$temp" && mv -fT "$temp" "$2" && sync "${2%/*}" || return
	changed="$changed $2"
}

sum() { sha256sum <"$1"; }

# point LINK TARGET: as place, of a symbolic link.
point() {
	[ "$(readlink "$1")" = "$2" ] && return
	temp=${1%/*}/.${1##*/}.unbounded-tmp-install
	rm -f "$temp"
	if ! { ln -s "$2" "$temp" && mv -fT "$temp" "$1" && sync "${1%/*}"; }; then die 1 "$1 cannot be written: see above"; fi
	changed="$changed $1"
}

# usable LINK: it leads to programs that can run.
usable() { [ -f "$PREFIX/$1/unbounded-admission" ] && [ -x "$PREFIX/$1/unbounded-admission" ]; }

# same LINK: what is there is this release, byte for byte.
same() {
	for program in "$new"/*; do
		file=$PREFIX/$1/${program##*/}
		[ -x "$file" ] && [ "$(sum "$program")" = "$(sum "$file")" ] || return 1
	done
}

# whole LINK: all is there that its slot was installed with.
whole() {
	folder=$PREFIX/$(readlink "$PREFIX/$1")
	while read -r listed; do
		case $listed in
		"$folder"/*) [ -x "$listed" ] || return 1 ;;
		esac
	done <"$PREFIX/manifest"
}

# leads LINK SLOT: there it leads to. A slot may be a link itself.
leads() { [ "$(readlink -f "$PREFIX/$1")" = "$(readlink -f "$PREFIX/slots/$2")" ]; }

# beside LINK: the slot that it does not lead to.
beside() { if leads "$1" blue; then echo green; else echo blue; fi; }

# choose finds the slot for the programs. One that a usable link leads to is never written to; empty: nothing is to be done.
choose() {
	for link in current last-good; do
		if [ -e "$PREFIX/$link" ] && [ ! -L "$PREFIX/$link" ]; then
			die 78 "$PREFIX/$link is not a symbolic link, and not ours: move it away; nothing was changed"
		fi
	done
	fits
	if usable current && same current; then
		slot=
	elif usable current; then
		slot=$(beside current)
	elif usable last-good; then
		slot=$(beside last-good)
	else
		slot=blue
	fi
	if [ -n "$slot" ] && usable current && leads current "$slot"; then
		die 78 "both slots of $PREFIX are one folder, and it is in use: see slots/ and the link current; nothing was changed"
	fi
}

# fits looks for what is in the way of programs and units below PREFIX.
fits() {
	place=$PREFIX
	while [ ! -d "$place" ]; do place=${place%/*}; done
	if findmnt -no OPTIONS -T "${place:-/}" 2>/dev/null | tr , '\n' | grep -qx noexec; then
		die 78 "programs cannot run below $PREFIX: its file system is mounted noexec; mount it without; nothing was changed"
	fi
	for folder in "$PREFIX/slots" "$PREFIX/slots/blue" "$PREFIX/slots/green" "$PREFIX/doc"; do
		if [ -e "$folder" ] && [ ! -d "$folder" ]; then die 78 "$folder is no folder, and not ours: move it away; nothing was changed"; fi
	done
	other=$(sed -n 's|^ExecStart=\(.*\)/current/unbounded-boot.*|\1|p' "$UNITS/unbounded-boot.service" 2>/dev/null) || other=
	if [ -n "$other" ] && [ "$other" != "$PREFIX" ]; then
		die 78 "the units here start programs below $other: $other/current/unboundedctl uninstall, or make install PREFIX=$other; nothing was changed"
	fi
	if [ "$start" = no-wait ] && [ -e "$HELD" ]; then
		die 78 "this host was reset, and $HELD keeps the boot service from making it a node: remove that file; nothing was changed"
	fi
}

# programs puts the release into the slot, and then switches to it.
programs() {
	if [ -n "$slot" ]; then
		# The slot may be that of last-good: what is in use now is what one can go back to.
		if usable current && whole current; then
			point "$PREFIX/last-good" "$(readlink "$PREFIX/current")"
		fi
		mkdir -p "$PREFIX/slots/$slot" || die 1 "$PREFIX/slots/$slot cannot be made: see above"
		rm -f "$PREFIX/slots/$slot"/.unbounded*.unbounded-tmp-install
		for old in "$PREFIX/slots/$slot"/unbounded*; do
			[ -e "$new/${old##*/}" ] || rm -f "$old"
		done
		for program in "$new"/*; do
			put "$program" "$PREFIX/slots/$slot/${program##*/}" 755
		done
		sync "$PREFIX/slots" "$PREFIX" "${PREFIX%/*}"
		# Commit point.
		point "$PREFIX/current" "slots/$slot"
	fi
	usable last-good || point "$PREFIX/last-good" "$(readlink "$PREFIX/current")"
}

# manifest adds what is placed to the list of what uninstall removes, before it is placed.
manifest() {
	mkdir -p "$PREFIX" || die 1 "$PREFIX cannot be made: see above; elsewhere it is installed by make install PREFIX=DIR"
	into=$slot
	if [ -z "$slot" ] && leads current green; then into=green; fi
	sed "s|^$PREFIX/slots/blue/|$PREFIX/slots/${into:-blue}/|" "$stage/tree$PREFIX/manifest" >"$stage/listed"
	if [ -f "$PREFIX/manifest" ]; then
		LC_ALL=C sort -u "$PREFIX/manifest" >"$stage/was"
		LC_ALL=C sort -u "$PREFIX/manifest" "$stage/listed" >"$stage/manifest"
		[ "$(sum "$stage/was")" = "$(sum "$stage/manifest")" ] && return
	else
		LC_ALL=C sort -u "$stage/listed" >"$stage/manifest"
	fi
	put "$stage/manifest" "$PREFIX/manifest" 644
}

# masked UNIT: its operator does not want it to be started.
masked() { [ "$(readlink "$UNITS/$1")" = /dev/null ]; }

# files places what is not a program.
files() {
	mkdir -p "$PREFIX/doc" "$UNITS"
	for file in "$stage/tree$PREFIX"/doc/*; do
		put "$file" "$PREFIX/doc/${file##*/}" 644
	done
	before=$changed
	for file in "$stage/tree$UNITS"/*; do
		if masked "${file##*/}"; then
			say "${file##*/} is masked, and left so"
		else
			put "$file" "$UNITS/${file##*/}" 644
		fi
	done
	[ "$before" = "$changed" ] || reload=yes
	for file in "$stage/tree$CATALOG"/*; do
		if ! mkdir -p "$CATALOG" 2>/dev/null || ! place "$file" "$CATALOG/${file##*/}" 644 2>/dev/null; then
			say "no message catalog: $CATALOG cannot be written; journalctl -x will not explain our events"
		fi
	done
}

# configure puts the configuration where admission reads it.
configure() {
	if [ -z "$config" ] || [ "$(readlink -f "$config")" = "$(readlink -f "$CONFIG")" ]; then return; fi
	mkdir -p "${CONFIG%/*}"
	put "$config" "$CONFIG" 600
}

# labels gives what was placed the labels that the host's policy has for its path.
labels() {
	[ -e /sys/fs/selinux/enforce ] && command -v restorecon >/dev/null || return 0
	restorecon -R "$PREFIX" "$UNITS"/unbounded* "$CATALOG" "${CONFIG%/*}" 2>/dev/null || say "SELinux labels could not be restored, ignoring"
}

# busy refuses to change what stages that run are made of.
busy() {
	jobs=$(systemctl list-jobs --no-legend 'unbounded-*') || die 1 "systemd does not say what runs: see above; nothing was changed"
	[ -z "$jobs" ] || die 75 "another release cannot be placed while a bootstrap or a reset runs: try again when it has ended; nothing was changed"
}

run() {
	# A killed run may have placed units and not said so.
	if [ "$reload" = no ] && systemctl show --property=NeedDaemonReload 'unbounded-*' | grep -q yes; then reload=yes; fi
	[ "$reload" = no ] || systemctl daemon-reload || die 1 "systemd does not read its units again: see above"
	if [ "$enable" = yes ] && ! masked unbounded-boot.service && ! systemctl is-enabled --quiet unbounded-boot.service; then
		systemctl enable --quiet unbounded-boot.service
	fi
	cleanup
	stage=
	exec 9<&-
	case $start in
	no) say "start it with: systemctl start unbounded-bootstrap.target" ;;
	no-wait)
		systemctl start --no-block unbounded-boot.service || die 1 "unbounded-boot.service cannot be started: see above"
		say "the bootstrap is being started; follow it with: journalctl -f -u 'unbounded-*'"
		;;
	wait)
		say "starting unbounded-bootstrap.target; follow it with: journalctl -f -u 'unbounded-*'"
		status=0
		systemctl start unbounded-bootstrap.target || status=$?
		[ $status -eq 0 ] || die $status "the bootstrap has not succeeded: see /run/unbounded/last-failure.json, mend it, and start unbounded-bootstrap.target again"
		say "this host is a node"
		;;
	esac
}

main() {
	parse "$@"
	surroundings
	alone
	prepare
	fetch
	unpack
	admitted
	changed='' reload=no
	choose
	if [ -n "$slot" ] && usable current; then busy; fi
	manifest
	programs
	files
	configure
	labels
	if [ -n "$changed" ]; then
		sync -f "$PREFIX" "$UNITS" # new folders too, before the boot service is enabled
	else
		say "everything is in place already"
	fi
	run
}

# In a function, so that a script that was cut off in transit does nothing.
main "$@"
