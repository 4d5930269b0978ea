package watched

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Field is a field by which the cache finds objects of a kind (client.MatchingFields).
type Field struct {
	object client.Object
	name   string
	values client.IndexerFunc
}

// By is a field of a kind, with the values that an object has in it.
func By[T any, P interface {
	*T
	client.Object
}](name string, values func(P) []string) Field {
	return Field{P(new(T)), name, func(o client.Object) []string { return values(o.(P)) }}
}

// ByOne is By for a field with one value.
func ByOne[T any, P interface {
	*T
	client.Object
}](name string, value func(P) string) Field {
	return By(name, func(o P) []string { return []string{value(o)} })
}

// Index has the cache of a manager find objects by some fields. It is called before the
// manager starts, once for each field.
func Index(ctx context.Context, ix client.FieldIndexer, fields ...Field) error {
	for _, f := range fields {
		if err := ix.IndexField(ctx, f.object, f.name, f.values); err != nil {
			return fmt.Errorf("index %T by %s: %w", f.object, f.name, err)
		}
	}
	return nil
}
