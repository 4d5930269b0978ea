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

// Limit is how long tests wait for steps that take a second on an idle machine.
const Limit = 3 * time.Minute

// Await waits until check returns nil for an object, and returns it.
func Await[T any, P kind[T]](t *testing.T, key client.ObjectKey, what string, check func(P) error) (o P) {
	t.Helper()
	c := harness.KubeClient(t)
	harness.Eventually(t, Limit, strings.TrimPrefix(key.String(), "/")+" "+what, func() error {
		o = new(T)
		if err := c.Get(t.Context(), key, o); err != nil {
			return err
		}
		if err := check(o); err != nil {
			return fmt.Errorf("%w: %+v", err, o)
		}
		return nil
	})
	return o
}

// If turns a predicate into a condition for Await, which prints the object if it does not hold.
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
			return fmt.Errorf("value = %+v, want %+v", got, want)
		}
		return nil
	})
}

// AwaitGone waits until an object does not exist.
func AwaitGone(t *testing.T, o client.Object) {
	t.Helper()
	c := harness.KubeClient(t)
	harness.Eventually(t, Limit, fmt.Sprintf("%T %s is deleted", o, o.GetName()), func() error {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			return errors.Join(fmt.Errorf("the object still exists: %+v", o), err)
		}
		return nil
	})
}

// Condition returns an error unless a condition has the given status, reason, and words in its message.
func Condition(list []metav1.Condition, kind string, status metav1.ConditionStatus, reason string, words ...string) error {
	c := meta.FindStatusCondition(list, kind)
	if c == nil || c.Status != status || c.Reason != reason || !harness.Says(c.Message, words...) {
		return fmt.Errorf("want condition %s %s with reason %s and message words %q, got %+v", kind, status, reason, words, c)
	}
	return nil
}

// Has is a condition for Await: an object's status must have a condition.
func Has[P client.Object](kind string, status metav1.ConditionStatus, reason string, words ...string) func(P) error {
	return func(o P) error {
		list := reflect.ValueOf(o).Elem().FieldByName("Status").FieldByName("Conditions").Interface().([]metav1.Condition)
		return Condition(list, kind, status, reason, words...)
	}
}

// Events returns the Events of an object as "REASON: MESSAGE", by its UID if it has one, otherwise by its name.
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
	harness.Eventually(t, Limit, "Event of "+o.GetName(), func() error {
		all := Events(t, o)
		for _, e := range all {
			if harness.Says(e, words...) {
				return nil
			}
		}
		return fmt.Errorf("want %q, got %q", words, all)
	})
}

// Same returns an error unless got equals want.
func Same[T comparable](what string, got, want T) error {
	if got != want {
		return fmt.Errorf("%s: got %v, want %v", what, got, want)
	}
	return nil
}
