package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/rpc/wire"
)

// Defaults of the network configuration.
const (
	DefaultSocket = "/run/berth/berthd.sock"
	// DefaultTimeout is berthd's default wait for an address, 45 s, plus time for the rest
	// (docs/contribute/architecture.md, "Pod lifecycle"). It is far below the kubelet's four minutes.
	DefaultTimeout = time.Minute
)

// Limits of the network configuration.
const (
	minTimeout = time.Second
	maxTimeout = 10 * time.Minute
	minMTU     = 576   // RFC 791: every host accepts it
	maxMTU     = 65535 // of a veth
	maxSocket  = 107   // unix(7): sun_path without the terminating zero
)

// network is the part of the configuration that every verb needs.
type network struct {
	CNIVersion string   `json:"cniVersion"`
	Name       string   `json:"name"`
	Socket     string   `json:"socket"`
	Timeout    duration `json:"timeout"`
}

// addConf is the configuration for ADD.
type addConf struct {
	network       `json:"-"`
	MTU           int             `json:"mtu"`  // bytes; 0: the daemon's choice
	Pool          string          `json:"pool"` // an AddressPool; empty: by annotations
	DNS           types.DNS       `json:"dns"`  // passed on to the result
	IPAM          types.IPAM      `json:"ipam"`
	RuntimeConfig runtimeConfig   `json:"runtimeConfig"`
	PrevResult    json.RawMessage `json:"prevResult"` // result of earlier plugins
}

// runtimeConfig has the capability arguments (CNI conventions) that Berth supports, and those that it
// must reject. It ignores others.
type runtimeConfig struct {
	IPs         []string       `json:"ips"`
	MAC         string         `json:"mac"`
	Annotations podAnnotations `json:"io.kubernetes.cri.pod-annotations"`
}

// parseNetwork reads the common part of the configuration and sets defaults. skel has checked name and
// version.
func parseNetwork(stdin []byte) (network, error) {
	n := network{Socket: DefaultSocket}
	if err := decode(stdin, &n); err != nil {
		return n, err
	}
	if n.Socket == "" {
		n.Socket = DefaultSocket
	}
	if !filepath.IsAbs(n.Socket) || len(n.Socket) > maxSocket {
		return n, invalid("socket", fmt.Sprintf("%q", n.Socket), fmt.Sprintf("an absolute path of at most %d bytes", maxSocket))
	}
	return n, nil
}

func (n network) timeout() time.Duration {
	if n.Timeout == 0 {
		return DefaultTimeout
	}
	return time.Duration(n.Timeout)
}

// parseAdd reads the configuration for ADD, and rejects what Berth cannot do.
func parseAdd(stdin []byte) (addConf, error) {
	var c addConf
	n, err := parseNetwork(stdin)
	if err != nil {
		return c, err
	}
	if err := decode(stdin, &c); err != nil {
		return c, err
	}
	c.network = n
	switch {
	case c.MTU != 0 && (c.MTU < minMTU || c.MTU > maxMTU):
		return c, invalid("mtu", fmt.Sprint(c.MTU), fmt.Sprintf("0 for the daemon's choice, or %d to %d bytes", minMTU, maxMTU))
	case len(c.Pool) > maxPoolName:
		return c, invalid("pool", fmt.Sprintf("%d bytes long", len(c.Pool)), "the name of an AddressPool")
	case isSet(c.PrevResult) && c.MTU != 0:
		return c, unsupported("mtu", fmt.Sprint(c.MTU), "the plugin before berth made the pod's interface; remove mtu")
	case isSet(c.PrevResult) && c.Pool != "":
		return c, unsupported("pool", c.Pool, "the plugin before berth gave the pod its address; remove pool")
	case c.IPAM.Type != "":
		return c, unsupported("ipam.type", c.IPAM.Type, "berth's addresses come from berthd; remove ipam")
	case len(c.RuntimeConfig.IPs) > 0:
		return c, unsupported("runtimeConfig.ips", fmt.Sprint(c.RuntimeConfig.IPs), "berthd chooses the address; remove the ips capability")
	case c.RuntimeConfig.MAC != "":
		return c, unsupported("runtimeConfig.mac", c.RuntimeConfig.MAC, "berthd chooses the hardware address; remove the mac capability")
	}
	return c, nil
}

func isSet(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// validAttachments reads the list of GC. A missing list is an error, since an empty one releases
// everything.
func validAttachments(stdin []byte) ([]wire.Attachment, error) {
	var conf struct {
		Valid json.RawMessage `json:"cni.dev/valid-attachments"`
		Early json.RawMessage `json:"cni.dev/attachments"` // libcni also sends this name
	}
	if err := decode(stdin, &conf); err != nil {
		return nil, err
	}
	const key = "cni.dev/valid-attachments"
	list := conf.Valid
	if list == nil {
		list = conf.Early
	}
	if list == nil {
		return nil, failf(types.ErrInvalidNetworkConfig, "%s: missing, expected the list of attachments to keep", key)
	}
	var entries []types.GCAttachment
	if err := json.Unmarshal(list, &entries); err != nil {
		return nil, failf(types.ErrInvalidNetworkConfig, "%s: expected a list of objects with containerID and ifname: %s", key, err)
	}
	valid := make([]wire.Attachment, len(entries))
	for i, e := range entries {
		if e.ContainerID == "" || e.IfName == "" {
			return nil, failf(types.ErrInvalidNetworkConfig, "%s[%d]: containerID is %q and ifname %q, expected both", key, i, e.ContainerID, e.IfName)
		}
		valid[i] = wire.Attachment{ContainerID: e.ContainerID, IfName: e.IfName}
	}
	return valid, nil
}

// duration is in Go's notation: "60s", "1m30s".
type duration time.Duration

// UnmarshalJSON implements json.Unmarshaler.
func (d *duration) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	var text string
	expected := fmt.Sprintf("a duration from %v to %v such as \"60s\"", minTimeout, maxTimeout)
	if json.Unmarshal(b, &text) != nil {
		return invalid("timeout", string(b), expected)
	}
	v, err := time.ParseDuration(text)
	if err != nil || v < minTimeout || v > maxTimeout {
		return invalid("timeout", fmt.Sprintf("%q", text), expected)
	}
	*d = duration(v)
	return nil
}

// decode is json.Unmarshal with errors that name the field and what was expected.
func decode(stdin []byte, to any) error {
	err := json.Unmarshal(stdin, to)
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*types.Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return invalid(e.Field, "a "+e.Value, expected(e.Type))
	}
	return types.NewError(types.ErrDecodingFailure, "the network configuration is not valid JSON", err.Error())
}

func expected(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int:
		return "a whole number"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	case reflect.Struct:
		return "an object"
	}
	return t.String()
}

func invalid(field, got, expected string) *types.Error {
	return failf(types.ErrInvalidNetworkConfig, "%s is %s, expected %s", field, got, expected)
}

// unsupported is CNI error 2, whose message must have the field and its value.
func unsupported(field, value, why string) *types.Error {
	return failf(types.ErrUnsupportedField, "%s %q is not supported: %s", field, value, why)
}

// kubernetesArgs are the CNI_ARGS that Kubernetes' runtimes set.
type kubernetesArgs struct {
	types.CommonArgs

	K8S_POD_NAMESPACE          types.UnmarshallableString //nolint:revive // the name is the key
	K8S_POD_NAME               types.UnmarshallableString //nolint:revive // the name is the key
	K8S_POD_UID                types.UnmarshallableString //nolint:revive // the name is the key
	K8S_POD_INFRA_CONTAINER_ID types.UnmarshallableString //nolint:revive // the name is the key
}

// parseArgs reads CNI_ARGS ("K=V;K2=V2"). Unknown keys are an error unless IgnoreUnknown is set, as in
// the reference plugins. The ID of the infra container equals CNI_CONTAINERID and is ignored.
func parseArgs(text string) (wire.Pod, error) {
	var a kubernetesArgs
	if err := types.LoadArgs(text, &a); err != nil {
		return wire.Pod{}, failf(types.ErrInvalidEnvironmentVariables, "CNI_ARGS is %q, expected KEY=VALUE pairs separated by semicolons: %s", text, err)
	}
	return wire.Pod{Namespace: string(a.K8S_POD_NAMESPACE), Name: string(a.K8S_POD_NAME), UID: string(a.K8S_POD_UID)}, nil
}

// PodAnnotations is the capability with which a runtime passes pod annotations to a plugin whose
// configuration declares it: containerd since 1.5, CRI-O since 1.29.
const PodAnnotations = "io.kubernetes.cri.pod-annotations"

// Limits of the annotations that are passed on, in bytes.
const (
	// maxPoolName bounds the name of a pool. The daemon validates it.
	maxPoolName = 256
	// maxAnnotations bounds keys and values together.
	maxAnnotations = 32 << 10
)

// podAnnotations are the pod annotations from the runtime. A user may write 256 kB of them: only
// Berth's are passed on.
type podAnnotations struct {
	known *wire.Annotations // nil: the runtime does not pass them on
}

// UnmarshalJSON implements json.Unmarshaler. It compares keys exactly, which encoding/json does not do
// with struct fields. A runtime with the capability may pass null for a pod without annotations.
func (a *podAnnotations) UnmarshalJSON(b []byte) error {
	const field = "runtimeConfig." + PodAnnotations
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(b, &all); err != nil {
		return failf(types.ErrInvalidNetworkConfig, "%s: expected an object of texts: %s", field, err)
	}
	a.known = &wire.Annotations{}
	size := 0
	for key, told := range all {
		if !isBerths(key) {
			continue
		}
		var value string
		if err := json.Unmarshal(told, &value); err != nil {
			return failf(types.ErrInvalidNetworkConfig, "%s: %s: expected a string: %s", field, key, err)
		}
		a.known.Set(key, value)
		size += len(key) + len(value)
	}
	if n := len(a.known.Pool); n > maxPoolName {
		return failf(types.ErrInvalidNetworkConfig, "the pod's annotation %s is %d bytes long, expected the name of an AddressPool", wire.AnnotationPool, n)
	}
	if size > maxAnnotations {
		return failf(types.ErrInvalidNetworkConfig, "the pod's annotations of %s are %d bytes long, expected at most %d", domain, size, maxAnnotations)
	}
	return nil
}

// domain is the domain of Berth's annotations, including its subdomains.
const domain = "berth.dev"

func isBerths(key string) bool {
	prefix, _, named := strings.Cut(key, "/")
	return named && (prefix == domain || strings.HasSuffix(prefix, "."+domain))
}
