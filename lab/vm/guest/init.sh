#!/busybox sh
# Process 1 of the guest until it has a root: loads the modules that it takes to reach
# the host's root, lays a tmpfs over that one, and goes on with run.sh there. What goes
# wrong is said on the serial console, and ends the guest.
b=/busybox
fail() {
	echo "the guest's init: $*"
	$b poweroff -f
}
$b mount -t proc proc /proc && $b mount -t sysfs sysfs /sys && $b mount -t devtmpfs devtmpfs /dev || fail "cannot mount /proc, /sys and /dev"
for module in $($b cat /modules/order); do
	$b insmod "/modules/$module" || fail "cannot load $module"
done
# Nothing changes on the host that the guest is to see, but for shared folders: so it may keep what it read.
$b mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /host || fail "cannot mount the host's root"
$b mount -t tmpfs -o size=75% tmpfs /changes || fail "cannot mount a tmpfs"
$b mkdir /changes/upper /changes/work
$b mount -t overlay -o lowerdir=/host,upperdir=/changes/upper,workdir=/changes/work,redirect_dir=on overlay /root || fail "cannot lay a tmpfs over the host's root"
$b mkdir -p /root/proc /root/sys /root/dev /root/mnt/vm
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 job /root/mnt/vm || fail "cannot mount the folder with the job"
for dir in proc sys dev; do $b mount --move /$dir /root/$dir; done
exec $b switch_root /root /bin/sh /mnt/vm/run.sh
