package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berthnet/berth/internal/ctl/bundle/archive"
	"github.com/berthnet/berth/internal/redact"
)

// at returns the path of a node's file as seen by this program.
func (n *node) at(name string) string {
	if name == "" || n.Root == "" || n.Root == "/" {
		return name
	}
	return filepath.Join(n.Root, name)
}

// Limits of each folder.
const (
	maxDepth = 3
	maxFiles = 2000
)

// folder adds the regular files below a folder, and a list of everything in it.
func folder(ctx context.Context, s *archive.Sink, to, dir string) error {
	if dir == "" {
		return errors.New("its path is unknown")
	}
	err := list(s, to+".txt", dir)
	files := 0
	walkErr := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, name)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && name == dir:
			return nil // reported by list
		case err != nil:
			s.Failed(rel, err)
			return nil
		case d.IsDir() && strings.Count(rel, string(filepath.Separator)) >= maxDepth:
			return fs.SkipDir
		case d.IsDir():
			return nil
		case files == maxFiles:
			return fmt.Errorf("%s has more than %d files", dir, maxFiles)
		}
		files++
		s.Failed(rel, file(s, path.Join(to, rel), name))
		return nil
	})
	return errors.Join(err, walkErr)
}

// file adds a file. It follows links, and ignores what is no regular file.
func file(s *archive.Sink, to, name string) error {
	f, err := openRegular(name)
	if f == nil {
		return err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, s.Most()+1))
	if err != nil {
		return err
	}
	return s.Document(to, data)
}

// openRegular opens a regular file. For anything else both results are nil.
func openRegular(name string) (*os.File, error) {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// list adds a listing of a folder, like ls -lR.
func list(s *archive.Sink, to, dir string) error {
	if dir == "" {
		return errors.New("its path is unknown")
	}
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	var b bytes.Buffer
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // reported by folder
		}
		rel, _ := filepath.Rel(dir, name)
		if d.IsDir() && strings.Count(rel, string(filepath.Separator)) >= maxDepth {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // it was removed
		}
		fmt.Fprintf(&b, "%s %10d %s %s", info.Mode(), info.Size(), info.ModTime().UTC().Format(time.RFC3339), filepath.Join(dir, rel))
		if target, err := os.Readlink(name); err == nil {
			fmt.Fprintf(&b, " -> %s", target)
		}
		b.WriteByte('\n')
		if b.Len() > int(s.Most()) {
			return fs.SkipAll
		}
		return nil
	})
	return errors.Join(err, s.Bytes(to, b.Bytes()))
}

// system adds files of /proc and /etc. /proc/net is that of this program's network namespace.
func (n *node) system(_ context.Context, s *archive.Sink) error {
	for _, name := range []string{
		"version", "cmdline", "uptime", "loadavg", "meminfo", "stat", "mounts", "self/mountinfo", "self/status", "pressure/cpu", "pressure/memory", "pressure/io",
		"net/snmp", "net/snmp6", "net/netstat", "net/sockstat", "net/sockstat6", "net/softnet_stat", "net/dev", "net/stat/nf_conntrack", "net/stat/arp_cache", "net/stat/ndisc_cache",
		"sys/kernel/random/boot_id",
	} {
		data, err := os.ReadFile("/proc/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // not in this kernel
		}
		if err == nil {
			err = s.Bytes("system/"+strings.ReplaceAll(name, "/", "-")+".txt", data)
		}
		s.Failed("/proc/"+name, err)
	}
	for _, name := range []string{"/etc/os-release", "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf"} {
		if err := file(s, "system"+name, n.at(name)); !errors.Is(err, fs.ErrNotExist) {
			s.Failed(name, err)
		}
	}
	return disks(s, n.at("/"), n.StateDir, n.CNIConfDir)
}

// disks adds the usage of file systems.
func disks(s *archive.Sink, paths ...string) error {
	var b bytes.Buffer
	for _, p := range paths {
		var st syscall.Statfs_t
		if err := syscall.Statfs(p, &st); err != nil {
			s.Failed("file system of "+p, err)
			continue
		}
		size := uint64(st.Bsize)
		fmt.Fprintf(&b, "%s: type %#x, %d of %d bytes free, %d of %d inodes free\n", p, st.Type, st.Bavail*size, st.Blocks*size, st.Ffree, st.Files)
	}
	return s.Bytes("system/disks.txt", b.Bytes())
}

// programs are the names of processes that concern pods' networks.
var programs = []string{
	"berthd", "berth-operator", "kubelet", "containerd", "crio", "dockerd", "kube-proxy", "bird", "bird6", "systemd-network", "NetworkManager",
	"calico-node", "cilium-agent", "flanneld", "aws-k8s-agent", "multus-daemon", "firewalld", "coredns",
}

// processes adds the visible processes with their arguments. Environment variables are not
// collected.
func processes(_ context.Context, s *archive.Sink) error {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, dir := range dirs {
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil || !slices.Contains(programs, strings.TrimSpace(string(comm))) {
			continue // it ended
		}
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		fmt.Fprintf(&b, "%s %s\n", filepath.Base(dir), commandLine(args))
		for _, name := range []string{"status", "limits"} {
			data, _ := os.ReadFile(filepath.Join(dir, name))
			for line := range strings.Lines(string(data)) {
				if strings.HasPrefix(line, "Vm") || strings.HasPrefix(line, "Threads") || strings.HasPrefix(line, "Cap") || strings.HasPrefix(line, "Max open files") {
					b.WriteString("    " + line)
				}
			}
		}
	}
	if b.Len() == 0 {
		return errors.New("no relevant process is visible from here (a container sees only its own)")
	}
	return s.Bytes("system/processes.txt", b.Bytes())
}

// commandLine returns the arguments in /proc/PID/cmdline, which end with zero bytes, as one
// line. It removes secrets before it joins the arguments, as a line does not show where an
// argument with spaces ends.
func commandLine(cmdline []byte) string {
	var args []any
	for arg := range strings.SplitSeq(strings.TrimRight(string(cmdline), "\x00"), "\x00") {
		args = append(args, arg)
	}
	shown, _ := redact.Value(args).([]any)
	return strings.ReplaceAll(strings.TrimSpace(fmt.Sprintln(shown...)), "\n", " ")
}
