package compile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berthnet/berth/internal/policy"
)

// Kind is what a Selector selects.
type Kind string

// The kinds of selectors. They are prefixes of set names.
const (
	Pods  Kind = "pods"
	Nodes Kind = "nodes"
	Ports Kind = "ports" // of pods, by name
)

// Selector selects pods, nodes, or named ports of pods.
type Selector struct {
	Kind Kind
	// Namespace is the namespace of the pods. If it is empty, Namespaces selects their namespaces.
	Namespace  string
	Namespaces labels.Selector
	Labels     labels.Selector // of pods or nodes

	Port     string // for Ports: the name
	Protocol uint8  // for Ports: the protocol; 0 for any
}

// Nothing selects no pods.
var Nothing = Selector{Kind: Pods, Namespaces: labels.Nothing(), Labels: labels.Nothing()}

// idBytes is the length of the hash in a set's name, in bytes. It must be long enough that authors of policies cannot find a selector
// whose set collides with another one.
const idBytes = 12

// ID returns the name of the selector's set. Equivalent selectors have the same name.
func (s Selector) ID() policy.SetID {
	namespaces := ""
	if s.Namespace == "" && s.Namespaces != nil {
		namespaces = textOf(s.Namespaces)
	}
	text := fmt.Sprintf("%q %q %q %q %d", s.Namespace, namespaces, textOf(s.Labels), s.Port, s.Protocol)
	if s.Kind != Nodes && s.Namespace == "" && s.Namespaces == nil {
		text += " nowhere"
	}
	sum := sha256.Sum256([]byte(text))
	return policy.SetID(string(s.Kind) + "-" + hex.EncodeToString(sum[:idBytes]))
}

// textOf returns a text that only equivalent selectors share. String does not suffice: it is empty for selectors of
// everything and of nothing.
func textOf(s labels.Selector) string {
	if _, selects := s.Requirements(); !selects {
		return "nothing()" // no selector's String has brackets without a value
	}
	return s.String()
}

// MatchesNamespace reports whether the selector can match pods of a namespace.
func (s Selector) MatchesNamespace(name string, of map[string]string) bool {
	if s.Namespace != "" {
		return s.Namespace == name
	}
	return s.Namespaces != nil && s.Namespaces.Matches(labels.Set(of))
}

// named returns the selector of a named port of the selected pods.
func (s Selector) named(port string, protocol uint8) Selector {
	s.Kind, s.Port, s.Protocol = Ports, port, protocol
	return s
}

// everyPod selects the pods of all namespaces.
var everyPod = Selector{Kind: Pods, Namespaces: labels.Everything(), Labels: labels.Everything()}

// parse reads a label selector. An invalid one, which the API server would reject, selects nothing and is reported.
func parse(field string, in *metav1.LabelSelector) (labels.Selector, error) {
	s, err := metav1.LabelSelectorAsSelector(in)
	if err != nil {
		return labels.Nothing(), fmt.Errorf("%s: %w", field, err)
	}
	return s, nil
}

// protocols are the protocols of policies by name.
var protocols = map[corev1.Protocol]uint8{corev1.ProtocolTCP: 6, corev1.ProtocolUDP: 17, corev1.ProtocolSCTP: 132}

// ProtocolOf returns the number of a protocol (https://www.iana.org/assignments/protocol-numbers), TCP if the name is empty.
func ProtocolOf(name corev1.Protocol) (uint8, bool) {
	if name == "" {
		name = corev1.ProtocolTCP
	}
	n, known := protocols[name]
	return n, known
}
