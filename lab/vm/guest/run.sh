# Process 1 of the guest in the overlay over the host's root. The file `job` says what
# it is to run (job.go). It tells the host what happens on port 3 of the serial device:
# "up", then "exit CODE", after which the host turns the guest off. Meanwhile it says "beat"
# every five seconds: the host ends a guest that does not (still.go).
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec 3>"$(echo /dev/vport*p3)"
heartbeat() {
	while :; do
		echo beat
		sleep 5
	done >&3
}
heartbeat &
trouble() {
	echo "trouble $*" >&3
	while :; do sleep 60; done
}
mkdir -p /dev/pts /dev/shm && mount -t devpts devpts /dev/pts && mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs -o mode=755 tmpfs /run ||
	trouble "cannot mount /dev/pts, /dev/shm and /run"
ln -s /proc/self/fd /dev/fd && ln -s fd/0 /dev/stdin && ln -s fd/1 /dev/stdout && ln -s fd/2 /dev/stderr
mount -t cgroup2 cgroup2 /sys/fs/cgroup && mount -t bpf bpf /sys/fs/bpf || trouble "cannot mount /sys/fs/cgroup and /sys/fs/bpf"
mkdir /run/netns && mount --bind /run/netns /run/netns && mount --make-shared /run/netns || trouble "cannot make /run/netns"
hostname vm
ip link set lo up || trouble "cannot set lo up"

. /mnt/vm/job # sets kernel_modules, modules, shared, network and merged, and defines job
mkdir -p /lib/modules && mount --bind "$kernel_modules" /lib/modules || trouble "cannot find the kernel's modules: $kernel_modules"
why=$(modprobe --all $modules 2>&1) || trouble "the kernel lacks modules: $why"
tag=0
while [ "$tag" -lt "$shared" ]; do
	eval "dir=\$shared_$tag"
	mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 "shared$tag" "$dir" || trouble "cannot mount the shared folder $dir"
	tag=$((tag + 1))
done
if [ -n "$network" ]; then
	modprobe virtio_net && ip link set eth0 name host0 && ip address add "$network" dev host0 && ip link set host0 up || trouble "cannot set up host0, the way to the host"
fi

# By pipes, since a port can be opened once only, and programs may open /dev/stdout.
mkfifo /run/vm-stdout /run/vm-stderr
cat /run/vm-stdout >"$(echo /dev/vport*p1)" &
copiers=$!
if [ -z "$merged" ]; then
	cat /run/vm-stderr >"$(echo /dev/vport*p2)" &
	copiers="$copiers $!"
	exec 4>/run/vm-stdout 5>/run/vm-stderr
else
	exec 4>/run/vm-stdout 5>&4
fi
echo up >&3
(job </dev/null >&4 2>&5 3>&- 4>&- 5>&-)
code=$?
# All that the job left running ends with it, so that the copiers come to an end, and the heartbeat too.
exec 4>&- 5>&-
more=yes
while [ -n "$more" ]; do
	more=
	for process in /proc/[0-9]*; do
		case " 1 $copiers " in
		*" ${process#/proc/} "*) ;;
		*) [ -e "$process/exe" ] && kill -KILL "${process#/proc/}" && more=yes ;; # a thread of the kernel has none
		esac
	done 2>/dev/null
done
heartbeat & # the host may take its time to read the rest
wait $copiers
echo "exit $code" >&3
while :; do sleep 60; done
