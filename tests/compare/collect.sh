# What a host is, but for its files: sections for compare.go. Any part that cannot be read fails the whole.
set -eu
export LC_ALL=C SYSTEMD_COLORS=0 SYSTEMD_PAGER=cat
section() { printf '\036%s\n' "$1"; }
have() { command -v "$1" >/dev/null; }

section unit-files
systemctl list-unit-files --no-legend --full
section units
systemctl list-units --all --plain --no-legend --full
section jobs
systemctl list-jobs --no-legend --full
section sysctls
# Some can only be written, some only be read when the kernel feels like it.
grep -rs . /proc/sys || true
section nft
nft -j list ruleset
for save in iptables-nft-save ip6tables-nft-save iptables-legacy-save ip6tables-legacy-save; do
	section "$save"
	if have $save; then $save; fi
done
section legacy-tables
for family in ip ip6; do
	names=/proc/net/${family}_tables_names
	if [ -e $names ]; then sed "s/^/$family /" $names; fi
done
section links
ip -d -j link show
section addresses
ip -j address show
for family in 4 6; do
	section rules$family
	ip -$family -N -j rule show
	section routes$family
	ip -$family -N -j route show table all
done
section mounts
cat /proc/1/mountinfo
section swap
cat /proc/swaps
section machine-ids
for file in /etc/machine-id /var/lib/dbus/machine-id; do
	if [ -e $file ]; then printf '%s %s\n' $file "$(cat $file)"; fi
done
printf 'pid1 %s\n' "$(systemd-id128 machine-id)"
section processes
ps -eo unit=,comm= | sort -u
section end
