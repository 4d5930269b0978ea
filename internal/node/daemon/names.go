package daemon

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
)

// The longest names, in bytes. Names are kept in records and shown to people,
// so their length and their characters are bounded here, whoever calls.
const (
	maxContainerID = 1024
	maxNetwork     = 253  // as a Kubernetes name; CNI sets no limit
	maxNetnsPath   = 4095 // PATH_MAX without its ending zero
	maxNamespace   = 63   // RFC 1123 label, as Kubernetes has it
	maxPodName     = 253  // RFC 1123 subdomain, likewise
	maxPodUID      = 128  // a UUID has 36; static pods' are other hashes
	maxLinkName    = 15   // IFNAMSIZ without its ending zero
)

// checkKey checks what names an attachment: CNI's rules for container IDs and
// networks, the kernel's for interface names.
func checkKey(key attachment.Key) error {
	if err := checkName("CNI_CONTAINERID", key.ContainerID, maxContainerID); err != nil {
		return err
	}
	if err := checkName("name of the network", key.Network, maxNetwork); err != nil {
		return err
	}
	if err := checkName("CNI_IFNAME", key.IfName, maxLinkName); err != nil {
		return err
	}
	switch {
	case key.ContainerID == "":
		return badRequest("CNI_CONTAINERID is empty")
	case utils.ValidateContainerID(key.ContainerID) != nil:
		return badRequest("CNI_CONTAINERID is %q, expected letters, digits, '_', '.' and '-'", key.ContainerID)
	case key.IfName == "" || key.IfName == "." || key.IfName == ".." || strings.ContainsAny(key.IfName, "/:%"): // of % the kernel makes a number
		return badRequest("CNI_IFNAME is %q, expected 1 to %d characters without '/', ':', '%%' and spaces", key.IfName, maxLinkName)
	}
	return nil
}

// checkPod checks what Kubernetes says of a pod. Other users of CNI may name
// theirs as they like, so that the characters of Kubernetes' names are not asked for.
func checkPod(pod attachment.Pod) error {
	for _, f := range []struct {
		name, value string
		most        int
	}{{"K8S_POD_NAMESPACE", pod.Namespace, maxNamespace}, {"K8S_POD_NAME", pod.Name, maxPodName}, {"K8S_POD_UID", pod.UID, maxPodUID}} {
		if err := checkName(f.name, f.value, f.most); err != nil {
			return err
		}
	}
	return nil
}

// checkName refuses what is too long, and what a terminal would not show as a word.
func checkName(field, value string, most int) error {
	if len(value) > most {
		return badRequest("%s is %d bytes long, expected at most %d", field, len(value), most)
	}
	if !printable(value) || strings.Contains(value, " ") {
		return badRequest("%s is %+q, expected no spaces and no control characters", field, value)
	}
	return nil
}

// checkNetnsPath checks CNI_NETNS, which may have spaces.
func checkNetnsPath(path string) error {
	switch {
	case path == "":
		return badRequest("CNI_NETNS is empty, expected the path of the pod's network namespace")
	case len(path) > maxNetnsPath:
		return badRequest("CNI_NETNS is %d bytes long, expected at most %d", len(path), maxNetnsPath)
	case !printable(path):
		return badRequest("CNI_NETNS is %+q, expected no control characters", path)
	}
	return nil
}

func printable(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) < 0
}

func badRequest(format string, args ...any) error {
	return cnierror.New(types.ErrInvalidEnvironmentVariables, "bad-request", "%s", fmt.Sprintf(format, args...))
}
