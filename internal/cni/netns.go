package cni

import (
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// checkNetns refuses what the daemon could not tell: a path that means
// something else there, and the namespace that the plugin itself runs in,
// which is the host's.
func checkNetns(args *skel.CmdArgs) error {
	if !filepath.IsAbs(args.Netns) {
		return failf(types.ErrInvalidEnvironmentVariables, "CNI_NETNS is %q, expected an absolute path", args.Netns)
	}
	return checkNotOwn(args)
}

// checkNotOwn refuses the namespace that the plugin itself runs in. It opens
// nothing: who opens a FIFO waits for its other end. Nor does skel, which would
// compare once more.
func checkNotOwn(args *skel.CmdArgs) error {
	if o := args.NetnsOverride; o == "1" || strings.EqualFold(o, "true") {
		return nil
	}
	args.NetnsOverride = "1"
	var given, own unix.Stat_t
	if err := unix.Stat(args.Netns, &given); err != nil {
		return nil //nolint:nilerr // for the daemon to say
	}
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		return types.NewError(types.ErrInvalidNetNS, "looking at the plugin's own network namespace", err.Error())
	}
	if given.Dev == own.Dev && given.Ino == own.Ino {
		return failf(types.ErrInvalidNetNS, "CNI_NETNS %s is the namespace that the plugin runs in, expected the pod's own", args.Netns)
	}
	return nil
}
