package bundle

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
)

// size is a number of bytes in the format of Kubernetes quantities: 4Mi, 500k.
type size int64

func (s size) String() string { return resource.NewQuantity(int64(s), resource.BinarySI).String() }

// Type implements pflag.Value.
func (s *size) Type() string { return "size" }

// minSize leaves room for the index of a bundle.
const minSize = 4 << 10

// Set implements pflag.Value.
func (s *size) Set(text string) error {
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Value() < minSize {
		return fmt.Errorf("expected a size of at least %s, such as 4Mi", size(minSize))
	}
	*s = size(q.Value())
	return nil
}
