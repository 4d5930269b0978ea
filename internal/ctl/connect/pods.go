package connect

import (
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// NameLabel identifies Berth's pods. Its values are also the names of their containers.
const (
	NameLabel    = "app.kubernetes.io/name"
	DaemonName   = "berthd"
	OperatorName = "berth-operator"
)

// Container returns a program's container in one of Berth's pods: the one with its name, or the only one.
func Container(pod *corev1.Pod, name string) (corev1.Container, bool) {
	for _, c := range pod.Spec.Containers {
		if c.Name == name || len(pod.Spec.Containers) == 1 {
			return c, true
		}
	}
	return corev1.Container{}, false
}

// Setting returns LookupSetting's value, or "" if it is not set.
func Setting(c corev1.Container, flag, env string) string {
	v, _ := LookupSetting(c, flag, env)
	return v
}

// LookupSetting returns a setting of a container: the value of the flag, or else of the environment variable.
func LookupSetting(c corev1.Container, flag, env string) (value string, set bool) {
	words := append(append([]string{}, c.Command...), c.Args...)
	for i, w := range words {
		if v, ok := strings.CutPrefix(w, "--"+flag+"="); ok {
			value, set = v, true
		} else if w == "--"+flag && i+1 < len(words) {
			value, set = words[i+1], true
		}
	}
	if set {
		return value, true
	}
	for _, e := range c.Env {
		if e.Name == env && e.ValueFrom == nil {
			value, set = e.Value, true
		}
	}
	return value, set
}

// LoopbackPort returns the port if the address is a loopback address, which port forwarding can reach, or else 0.
func LoopbackPort(address string) uint16 {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host != "localhost" && host != "127.0.0.1" && host != "::1" {
		return 0
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(n)
}
