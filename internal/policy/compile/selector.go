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

// The kinds of selectors, whose names begin the names of sets.
const (
	Pods  Kind = "pods"
	Nodes Kind = "nodes"
	Ports Kind = "ports" // of pods, by name
)

// Selector selects pods, nodes, or named ports of pods.
type Selector struct {
	Kind Kind
	// Namespace is that of the pods; if it is empty they are in namespaces that Namespaces selects.
	Namespace  string
	Namespaces labels.Selector
	Labels     labels.Selector // of pods or nodes

	Port     string // Ports: the name
	Protocol uint8  // Ports: only of this protocol; 0: of any
}

// Nothing selects no pod.
var Nothing = Selector{Kind: Pods, Namespaces: labels.Nothing(), Labels: labels.Nothing()}

// idBytes is how many bytes of a hash a set's name has: too many for somebody who writes policies to find a selector of his own
// whose set is one of the sets of others.
const idBytes = 12

// ID returns the name of the selector's set: the same for selectors that select the same.
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

// textOf returns a text that two selectors share only if they select the same: String is empty for everything and for
// nothing.
func textOf(s labels.Selector) string {
	if _, selects := s.Requirements(); !selects {
		return "nothing()" // no selector's String has brackets without a value
	}
	return s.String()
}

// MatchesNamespace tells whether pods of a namespace may be selected.
func (s Selector) MatchesNamespace(name string, of map[string]string) bool {
	if s.Namespace != "" {
		return s.Namespace == name
	}
	return s.Namespaces != nil && s.Namespaces.Matches(labels.Set(of))
}

// named returns the selector of ports that the selected pods call by a name.
func (s Selector) named(port string, protocol uint8) Selector {
	s.Kind, s.Port, s.Protocol = Ports, port, protocol
	return s
}

// everyPod selects the pods of all namespaces.
var everyPod = Selector{Kind: Pods, Namespaces: labels.Everything(), Labels: labels.Everything()}

// parse reads a label selector. Of one that makes no sense, which the API server rejects, it selects nothing and says so.
func parse(field string, in *metav1.LabelSelector) (labels.Selector, error) {
	s, err := metav1.LabelSelectorAsSelector(in)
	if err != nil {
		return labels.Nothing(), fmt.Errorf("%s: %w", field, err)
	}
	return s, nil
}

// protocols are those that policies name, by their names.
var protocols = map[corev1.Protocol]uint8{corev1.ProtocolTCP: 6, corev1.ProtocolUDP: 17, corev1.ProtocolSCTP: 132}

// ProtocolOf returns the number of a protocol (https://www.iana.org/assignments/protocol-numbers), TCP if the name is empty.
func ProtocolOf(name corev1.Protocol) (uint8, bool) {
	if name == "" {
		name = corev1.ProtocolTCP
	}
	n, known := protocols[name]
	return n, known
}
