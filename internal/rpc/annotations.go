package rpc

import "github.com/berthnet/berth/internal/rpc/wire"

// Get returns the annotation of a key, also one that a plugin of the first release
// told in its way. ok tells whether the pod has it.
func (x *Annotations) Get(key string) (value string, ok bool) {
	if value, ok = x.GetAll()[key]; !ok && key == wire.AnnotationPool {
		value = x.GetPool()
		ok = value != ""
	}
	return value, ok
}
