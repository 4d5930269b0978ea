package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/node/podevents"
)

// eventsPath is the path of Events of events.k8s.io/v1. They are the same objects as those of v1, but their counts can be
// increased without reading them.
const eventsPath = "/apis/events.k8s.io/v1/namespaces"

// PodEvents writes Events of Pods. It implements podevents.Writer.
type PodEvents struct{ api *Client }

// NewPodEvents returns a writer of Events with the configuration that Config finds. It makes no request yet.
func NewPodEvents(kubeconfig string) (PodEvents, error) {
	cfg, err := Config(kubeconfig)
	if err != nil {
		return PodEvents{}, err
	}
	api, err := New(cfg)
	return PodEvents{api}, err
}

// event is an Event of events.k8s.io/v1 with the fields that Berth writes. The generated types would load all of core/v1
// into the daemon's memory.
type event struct {
	metav1.TypeMeta     `json:",inline"`
	Metadata            eventMeta        `json:"metadata"`
	EventTime           metav1.MicroTime `json:"eventTime"`
	Series              *eventSeries     `json:"series,omitempty"`
	ReportingController string           `json:"reportingController"`
	ReportingInstance   string           `json:"reportingInstance"`
	Action              string           `json:"action"`
	Reason              string           `json:"reason"`
	Regarding           podReference     `json:"regarding"`
	Note                string           `json:"note"`
	Type                string           `json:"type"`
}

type eventMeta struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

type podReference struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Namespace  string    `json:"namespace"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid,omitempty"`
}

type eventSeries struct {
	Count            int              `json:"count"`
	LastObservedTime metav1.MicroTime `json:"lastObservedTime"`
}

// eventOf returns an Event as the API expects it.
func eventOf(e podevents.Event) event {
	kind := "Normal"
	if e.Warning {
		kind = "Warning"
	}
	out := event{
		TypeMeta:            metav1.TypeMeta{APIVersion: "events.k8s.io/v1", Kind: "Event"},
		Metadata:            eventMeta{Name: e.Name, Namespace: e.Pod.Namespace},
		EventTime:           metav1.NewMicroTime(e.First),
		ReportingController: podevents.Controller, ReportingInstance: e.Instance,
		Action: e.Action, Reason: e.Reason, Note: e.Note, Type: kind,
		Regarding: podReference{APIVersion: "v1", Kind: "Pod", Namespace: e.Pod.Namespace, Name: e.Pod.Name, UID: types.UID(e.Pod.UID)},
	}
	if e.Count > 1 {
		out.Series = &eventSeries{e.Count, metav1.NewMicroTime(e.Last)}
	}
	return out
}

// Create implements podevents.Writer.
func (w PodEvents) Create(ctx context.Context, e podevents.Event) error {
	if err := checkPodName(e); err != nil {
		return err
	}
	body, err := json.Marshal(eventOf(e))
	if err != nil {
		return fmt.Errorf("%w: %w", podevents.ErrFinal, err)
	}
	return eventError("create", e, w.api.rest.Post().AbsPath(eventsPath, e.Pod.Namespace, "events").
		Param("fieldManager", v1alpha1.OwnerDaemon).SetHeader("Content-Type", "application/json").Body(body).
		MaxRetries(0).Timeout(Timeout).Do(ctx).Error())
}

// Repeat implements podevents.Writer.
func (w PodEvents) Repeat(ctx context.Context, e podevents.Event) error {
	if err := checkPodName(e); err != nil {
		return err
	}
	body, err := json.Marshal(map[string]eventSeries{"series": {e.Count, metav1.NewMicroTime(e.Last)}})
	if err != nil {
		return fmt.Errorf("%w: %w", podevents.ErrFinal, err)
	}
	return eventError("count up", e, w.api.rest.Patch(types.MergePatchType).AbsPath(eventsPath, e.Pod.Namespace, "events", e.Name).
		Param("fieldManager", v1alpha1.OwnerDaemon).Body(body).MaxRetries(0).Timeout(Timeout).Do(ctx).Error())
}

// checkPodName returns an error for names that no Pod can have. The names come from the runtime, and become part of a path.
func checkPodName(e podevents.Event) error {
	if len(validation.IsDNS1123Label(e.Pod.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(e.Pod.Name)) > 0 {
		return fmt.Errorf("%w: %q in namespace %q cannot be the name of a Pod", podevents.ErrFinal, e.Pod.Name, e.Pod.Namespace)
	}
	return nil
}

// eventError distinguishes permanent errors (podevents.ErrFinal) from those that may be retried.
func eventError(what string, e podevents.Event, err error) error {
	if err == nil {
		return nil
	}
	code := 0
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		code = int(status.Status().Code)
	}
	err = fmt.Errorf("%s an Event of Pod %s/%s: %w", what, e.Pod.Namespace, e.Pod.Name, err)
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("%w: %w", podevents.ErrTaken, err)
	}
	if code >= 400 && code < 500 && code != 408 && code != 429 {
		return fmt.Errorf("%w: %w", podevents.ErrFinal, err)
	}
	return err
}
