package nodetemplate

import (
	"fmt"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nodenetwork/template"
	"github.com/berthnet/berth/internal/statefile"
)

// Files in the state directory, of one form.
const (
	choiceFile = "template.json"         // the last choice
	countsFile = "template-counted.json" // the last one that could be had
)

// stored is a choice, also that there is none.
type stored struct {
	InstanceID string            `json:"instanceID"`
	Name       string            `json:"name,omitempty"` // of the object, as KIND/NAME; empty: none selects the node
	ENI        *v1alpha1.ENISpec `json:"eni,omitempty"`
	Drain      bool              `json:"drain,omitempty"`
}

// load reads a choice for an instance from a file. It reports whether there is one.
func load(dir, file, instanceID string) (*template.Choice, bool, error) {
	var s stored
	ok, err := statefile.LoadJSON(dir, file, &s)
	switch {
	case err != nil:
		return nil, false, err
	case !ok || s.InstanceID != instanceID:
		return nil, false, nil
	case s.Name == "":
		return nil, true, nil
	case s.ENI == nil:
		return nil, false, fmt.Errorf("read %s: it has no settings of %s", file, s.Name)
	}
	return &template.Choice{Name: s.Name, ENI: *s.ENI, Drain: s.Drain}, true, nil
}

func save(dir, file, instanceID string, c *template.Choice) error {
	s := stored{InstanceID: instanceID}
	if c != nil {
		s.Name, s.ENI, s.Drain = c.Name, &c.ENI, c.Drain
	}
	return statefile.ReplaceJSON(dir, file, s)
}
