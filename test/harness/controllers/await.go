package controllers

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/test/harness"
)

// Limit is how long tests wait for what takes a second on an idle machine.
const Limit = 3 * time.Minute

// Await waits until is returns nil for an object, and returns it.
func Await[T any, P kind[T]](t *testing.T, key client.ObjectKey, what string, is func(P) error) (o P) {
	t.Helper()
	c := harness.KubeClient(t)
	harness.Eventually(t, Limit, strings.TrimPrefix(key.String(), "/")+" "+what, func() error {
		o = new(T)
		if err := c.Get(t.Context(), key, o); err != nil {
			return err
		}
		if err := is(o); err != nil {
			return fmt.Errorf("%w: %+v", err, o)
		}
		return nil
	})
	return o
}

// If is for Await, which prints the object that is not as it should be.
func If[T any](is func(T) bool) func(T) error {
	return func(o T) error {
		if !is(o) {
			return errors.New("not yet")
		}
		return nil
	}
}

// AwaitValue waits until get returns a value.
func AwaitValue[T any](t *testing.T, what string, get func() T, want T) {
	t.Helper()
	harness.Eventually(t, Limit, what, func() error {
		if got := get(); !cmp.Equal(got, want, cmpopts.EquateEmpty()) {
			return fmt.Errorf("is %+v, want %+v", got, want)
		}
		return nil
	})
}

// AwaitGone waits until an object does not exist.
func AwaitGone(t *testing.T, o client.Object) {
	t.Helper()
	c := harness.KubeClient(t)
	harness.Eventually(t, Limit, fmt.Sprintf("%T %s goes", o, o.GetName()), func() error {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			return errors.Join(fmt.Errorf("it exists: %+v", o), err)
		}
		return nil
	})
}

// Condition is an error unless a condition has a status, a reason, and words in its message.
func Condition(list []metav1.Condition, kind string, status metav1.ConditionStatus, reason string, words ...string) error {
	c := meta.FindStatusCondition(list, kind)
	if c == nil || c.Status != status || c.Reason != reason || !harness.Says(c.Message, words...) {
		return fmt.Errorf("want %s %s for %s with %q, got %+v", kind, status, reason, words, c)
	}
	return nil
}

// Has is for Await: it wants an object's status to have a condition.
func Has[P client.Object](kind string, status metav1.ConditionStatus, reason string, words ...string) func(P) error {
	return func(o P) error {
		list := reflect.ValueOf(o).Elem().FieldByName("Status").FieldByName("Conditions").Interface().([]metav1.Condition)
		return Condition(list, kind, status, reason, words...)
	}
}

// Events are those of an object as "REASON: MESSAGE", by its UID if it has one, else by its name.
func Events(t *testing.T, o client.Object) (out []string) {
	t.Helper()
	list := &corev1.EventList{}
	harness.OK(t, harness.KubeClient(t).List(t.Context(), list, client.InNamespace(o.GetNamespace())))
	for _, e := range list.Items {
		if of := e.InvolvedObject; of.UID == o.GetUID() || o.GetUID() == "" && of.Name == o.GetName() {
			out = append(out, e.Reason+": "+e.Message)
		}
	}
	return out
}

// AwaitEvent waits for an Event of an object with words in "REASON: MESSAGE".
func AwaitEvent(t *testing.T, o client.Object, words ...string) {
	t.Helper()
	harness.Eventually(t, Limit, "an Event of "+o.GetName(), func() error {
		all := Events(t, o)
		for _, e := range all {
			if harness.Says(e, words...) {
				return nil
			}
		}
		return fmt.Errorf("want %q, got %q", words, all)
	})
}

// Same is an error unless got is want.
func Same[T comparable](what string, got, want T) error {
	if got != want {
		return fmt.Errorf("%s: got %v, want %v", what, got, want)
	}
	return nil
}
