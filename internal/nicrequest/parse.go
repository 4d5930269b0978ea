// Package nicrequest parses and checks the NICs that a pod's annotations request. The webhook, the controller and the daemon all
// use it, so they agree on a pod's NICs. It does no I/O.
//
//	parse.go    the annotation, and errors that name its fields
//	complete.go names of NICs, and contradictions
//	resolve.go  subnets and addresses, checked against the network
//	pod.go      whether a pod may have NICs, and in which VPC; names of PodNICs
//	vpc.go      whether a namespace may use a VPC, permitted changes of a running pod, and the webhook's check of all of it
//	limits.go   limits of the NICs of a namespace in a VPC
//	policy.go   NICs that policies give to pods
package nicrequest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/yamlalias"
)

// Limits of the annotation, beyond which Parse rejects it.
const (
	MaxLength  = 16 << 10 // bytes
	MaxEntries = 32
)

// Entry is one NIC of the annotation. Missing keys are empty.
type Entry struct {
	Name           string
	Subnet, IP     string
	Addresses      []EntryAddress // instead of Subnet and IP, for two families
	SecurityGroups []string
	PortID         string // an existing port
	NIC            string // an existing PodNIC
	DefaultRoute   bool
	Binding        string // how a virtual machine in the pod uses it
	Tap            *Tap
}

// Tap describes the tap device of a NIC. Missing keys are nil.
type Tap struct {
	Owner, Group *int64
	MultiQueue   bool
}

// EntryAddress is an address of the annotation.
type EntryAddress struct{ Subnet, IP string }

// aliases are the spellings of keys in Arktos.
var aliases = map[string]string{"subnetName": "subnet", "ipAddress": "ip", "portId": "portID", "securityGroup": "securityGroups"}

// keys parse the values of an entry. The error says what was expected.
var keys = map[string]func(*Entry, json.RawMessage) error{
	"name":           func(e *Entry, v json.RawMessage) error { return text(v, &e.Name) },
	"subnet":         func(e *Entry, v json.RawMessage) error { return text(v, &e.Subnet) },
	"ip":             func(e *Entry, v json.RawMessage) error { return text(v, &e.IP) },
	"addresses":      func(e *Entry, v json.RawMessage) error { return addresses(v, &e.Addresses) },
	"securityGroups": func(e *Entry, v json.RawMessage) error { return texts(v, &e.SecurityGroups) },
	"portID":         func(e *Entry, v json.RawMessage) error { return text(v, &e.PortID) },
	"nic":            func(e *Entry, v json.RawMessage) error { return text(v, &e.NIC) },
	"binding":        func(e *Entry, v json.RawMessage) error { return text(v, &e.Binding) },
	"tap":            func(e *Entry, v json.RawMessage) error { return tap(v, &e.Tap) },
	"defaultRoute": func(e *Entry, v json.RawMessage) error {
		if json.Unmarshal(v, &e.DefaultRoute) != nil || string(v) == "null" {
			return fmt.Errorf("is %s, expected true or false", shown(v))
		}
		return nil
	},
}

// Parse parses the annotation, a list in YAML or JSON. An empty annotation has no entries.
func Parse(annotation string) ([]Entry, Errors) {
	if annotation == "" { // of most pods, and read at each step of their NICs
		return []Entry{}, nil
	}
	var errs Errors
	if n := len(annotation); n > MaxLength {
		errs.add(fieldNICs, "is %d bytes long, expected %d at most", n, MaxLength)
		return nil, errs
	}
	aliased, err := yamlalias.In([]byte(annotation))
	if aliased {
		errs.add(fieldNICs, "has a YAML alias (*NAME), expected the value itself")
		return nil, errs
	}
	var data []byte
	if err == nil {
		data, err = yaml.YAMLToJSONStrict([]byte(annotation))
	}
	if err != nil {
		errs.add(fieldNICs, "is neither YAML nor JSON: %s", short(strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " "), 200))
		return nil, errs
	}
	var list []json.RawMessage
	if err := json.Unmarshal(data, &list); err != nil {
		errs.add(fieldNICs, "is %s, expected a list of NICs such as [{subnet: subnet-1}]", shown(data))
		return nil, errs
	}
	if n := len(list); n > MaxEntries {
		errs.add(fieldNICs, "has %d NICs, expected %d at most", n, MaxEntries)
		return nil, errs
	}
	entries := make([]Entry, len(list))
	for i, item := range list {
		entries[i] = entry(i, item, &errs)
	}
	return entries, errs
}

// entry parses one NIC.
func entry(index int, item json.RawMessage, errs *Errors) Entry {
	var e Entry
	var values map[string]json.RawMessage
	if json.Unmarshal(item, &values) != nil || values == nil {
		errs.add(field(index, ""), "is %s, expected keys and values such as {subnet: subnet-1}", shown(item))
		return e
	}
	said := map[string]string{} // key, as it is written
	for _, written := range slices.Sorted(maps.Keys(values)) {
		key := written
		if a, ok := aliases[written]; ok {
			key = a
		}
		read, known := keys[key]
		if !known {
			errs.add(field(index, written), "unknown, expected one of %s", strings.Join(slices.Sorted(maps.Keys(keys)), ", "))
			continue
		}
		if other, twice := said[key]; twice {
			errs.add(field(index, written), "means the same as %s, expected only one of them", other)
			continue
		}
		said[key] = written
		value := values[written]
		if written == "securityGroup" {
			var one string
			if err := text(value, &one); err != nil {
				errs.add(field(index, written), "%s", err)
			} else {
				e.SecurityGroups = []string{one}
			}
			continue
		}
		if err := read(&e, value); err != nil {
			errs.add(field(index, written), "%s", err)
		}
	}
	return e
}

// text parses a string that must not be empty.
func text(v json.RawMessage, into *string) error {
	if err := json.Unmarshal(v, into); err != nil || *into == "" {
		return fmt.Errorf("is %s, expected a non-empty string", shown(v))
	}
	return nil
}

func texts(v json.RawMessage, into *[]string) error {
	if err := json.Unmarshal(v, into); err != nil || len(*into) == 0 || slices.Contains(*into, "") {
		return fmt.Errorf("is %s, expected a list of non-empty strings", shown(v))
	}
	return nil
}

func addresses(v json.RawMessage, into *[]EntryAddress) error {
	var list []map[string]string
	if err := json.Unmarshal(v, &list); err != nil || len(list) == 0 {
		return fmt.Errorf("is %s, expected a list such as [{subnet: subnet-1, ip: 192.168.0.12}]", shown(v))
	}
	for i, item := range list {
		for key := range item {
			if key != "subnet" && key != "ip" {
				return fmt.Errorf("[%d] has the key %.40q, expected subnet and ip", i, key)
			}
		}
		*into = append(*into, EntryAddress{item["subnet"], item["ip"]})
	}
	return nil
}

// tap parses the description of a tap device, with the keys of the CNI reference plugin tap.
func tap(v json.RawMessage, into **Tap) error {
	var values map[string]json.RawMessage
	if json.Unmarshal(v, &values) != nil || len(values) == 0 {
		return fmt.Errorf("is %s, expected keys and values such as {owner: 107, multiQueue: true}", shown(v))
	}
	var t Tap
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value := values[key]
		null := string(value) == "null"
		switch key {
		case "owner", "group":
			var id int64
			if json.Unmarshal(value, &id) != nil || null || id < 0 || id > maxID {
				return fmt.Errorf("has the %s %s, expected a %s ID from 0 to %d", key, shown(value), map[string]string{"owner": "user", "group": "group"}[key], int64(maxID))
			}
			*map[string]**int64{"owner": &t.Owner, "group": &t.Group}[key] = &id
		case "multiQueue":
			if json.Unmarshal(value, &t.MultiQueue) != nil || null {
				return fmt.Errorf("has multiQueue %s, expected true or false", shown(value))
			}
		default:
			return fmt.Errorf("has the key %.40q, expected owner, group or multiQueue", key)
		}
	}
	*into = &t
	return nil
}

// maxID is the highest ID of a user or group; the next one stands for none (chown(2)).
const maxID = 1<<32 - 2

// shown is a value as an error shows it.
func shown(v json.RawMessage) string { return short(string(v), 60) }

// short truncates a text to most bytes, and marks that with dots.
func short(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// Fields of a pod, for errors.
const (
	fieldVPC         = "metadata.annotations[" + v1alpha1.AnnotationVPC + "]"
	fieldNICs        = "metadata.annotations[" + v1alpha1.AnnotationNICs + "]"
	fieldHostNetwork = "spec.hostNetwork"
)

// Error is an error of one field.
type Error struct {
	Field  string // such as metadata.annotations[berth.dev/nics][1].ip
	Detail string // the value, and what was expected
}

// Error returns a text such as "metadata.annotations[berth.dev/nics][1].ip: 10.0.0.1 is the gateway ...".
func (e Error) Error() string { return e.Field + ": " + e.Detail }

// Errors are all errors of a request, in the order of the fields.
type Errors []Error

// Err joins the errors; nil without any.
func (e Errors) Err() error {
	if len(e) == 0 {
		return nil
	}
	texts := make([]string, len(e))
	for i, one := range e {
		texts[i] = one.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}

func (e *Errors) add(field, format string, args ...any) {
	*e = append(*e, Error{field, fmt.Sprintf(format, args...)})
}

// field is the path of a key of the NIC at an index of the annotation.
func field(index int, name string) string {
	path := fmt.Sprintf("%s[%d]", fieldNICs, index)
	if name == "" {
		return path
	}
	return path + "." + name
}
