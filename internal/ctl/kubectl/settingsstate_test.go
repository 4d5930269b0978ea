package kubectl

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/internal/ctl/view"
)

// Pods tell by themselves how their settings differ from what the chart installed.
func TestProgramDrift(t *testing.T) {
	pod := func(name, record string, env ...corev1.EnvVar) *corev1.Pod {
		env = append(env, corev1.EnvVar{Name: "BERTH_INSTALLED", Value: record})
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: name, Env: env}}}}
	}
	const record = `{"env":{"BERTH_WARM_IP_TARGET":"3","BERTH_NODE_NAME":null}}`
	node := corev1.EnvVar{Name: "BERTH_NODE_NAME", ValueFrom: &corev1.EnvVarSource{}}
	changed := pod("berthd", record, corev1.EnvVar{Name: "BERTH_WARM_IP_TARGET", Value: "9"}, node)
	o := objects{daemons: map[string]daemon{
		"a": {pod: changed}, "b": {pod: changed}, "c": {pod: pod("berthd", record, corev1.EnvVar{Name: "BERTH_WARM_IP_TARGET", Value: "3"}, node)},
	}}
	o.operator.pods = []corev1.Pod{*pod("berth-operator", `{"env":{}}`, corev1.EnvVar{Name: "BERTH_SHRINK_DELAY", Value: "1h"})}
	var out bytes.Buffer
	s := &SettingsState{Release: "berth", Revision: 2, Programs: programDrift(o)}
	s.write(&view.Printer{W: &out})
	const want = "Settings: as in Helm release berth, revision 2\n" +
		"Changed: berthd on 2 pods: warm-ip-target is 9, and the chart installed 3\n" +
		"Changed: berth-operator on 1 pod: shrink-delay is 1h, and the chart installed 1m\n"
	if out.String() != want {
		t.Errorf("output:\n%swant\n%s", out.String(), want)
	}
}
