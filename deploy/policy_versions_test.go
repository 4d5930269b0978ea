package deploy_test

import (
	"testing"

	celgo "github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/test/harness"
)

// expression is an expression of a policy and its type.
type expression struct {
	name, text string
	kind       *celgo.Type
}

func (e expression) GetName() string            { return e.name }
func (e expression) GetExpression() string      { return e.text }
func (e expression) ReturnTypes() []*celgo.Type { return []*celgo.Type{e.kind} }

// TestPoliciesCompileOnTheOldestKubernetes compiles policies with the CEL functions of the oldest
// Kubernetes version that their mode supports. An API server accepts only the functions of the
// previous release in new expressions.
func TestPoliciesCompileOnTheOldestKubernetes(t *testing.T) {
	enabled := map[string]any{"enabled": true}
	for name, tt := range map[string]struct {
		values map[string]any
		minor  uint // of the release before the oldest supported one
	}{
		"node":     {map[string]any{"mode": deploy.NodeMode, "clusterName": "test"}, 29},
		"operator": {map[string]any{"mode": deploy.OperatorMode, "clusterName": "test", "egress": enabled, "ports": enabled}, 31},
		"pool":     {map[string]any{"mode": deploy.PoolMode, "clusterName": "test", "egress": enabled, "ports": enabled}, 31},
		"port":     {map[string]any{"mode": deploy.PortMode, "clusterName": "test", "egress": enabled}, 31},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := deploy.Render(deploy.Release{Values: tt.values})
			harness.OK(t, err)
			set := environment.MustBaseEnvSet(version.MajorMinor(1, tt.minor))
			for _, o := range objects.Of("ValidatingAdmissionPolicy") {
				p := one[admissionv1.ValidatingAdmissionPolicy](t, objects, o.GetName())
				compiler, err := cel.NewCompositedCompiler(set)
				harness.OK(t, err)
				has := cel.OptionalVariableDeclarations{HasParams: p.Spec.ParamKind != nil, HasAuthorizer: true}
				check := func(e expression) {
					t.Helper()
					if r := compiler.CompileCELExpression(e, has, environment.NewExpressions); r.Error != nil {
						t.Errorf("policy %s: %s\n%v", p.Name, e.text, r.Error)
					}
				}
				for _, c := range p.Spec.MatchConditions {
					check(expression{c.Name, c.Expression, celgo.BoolType})
				}
				for _, v := range p.Spec.Variables {
					if r := compiler.CompileAndStoreVariable(expression{v.Name, v.Expression, celgo.AnyType}, has, environment.NewExpressions); r.Error != nil {
						t.Errorf("policy %s: variable %s: %v", p.Name, v.Name, r.Error)
					}
				}
				for _, v := range p.Spec.Validations {
					check(expression{"", v.Expression, celgo.BoolType})
					if v.MessageExpression != "" {
						check(expression{"", v.MessageExpression, celgo.StringType})
					}
				}
			}
		})
	}
}
