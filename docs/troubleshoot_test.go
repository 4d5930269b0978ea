// Package docs contains the documentation. Its tests compare it with the code.
package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// literals are the string literals of the packages with messages for users, and those of them that are reasons.
type literals struct {
	texts   []string
	reasons map[string]string // file by reason
}

func readCode(t *testing.T) literals {
	t.Helper()
	l := literals{reasons: map[string]string{}}
	goFiles(t, func(path string) error {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err == nil {
			ast.Inspect(file, func(n ast.Node) bool { l.take(n, path); return true })
		}
		return err
	}, "../api/v1alpha1", "../internal/ec2/cloud", "../internal/cni", "../internal/config", "../internal/ctl/bundle",
		"../internal/kernel", "../internal/ec2/eni", "../internal/kubeapi", "../internal/nodenetwork", "../internal/operator", "../internal/source", "../internal/node", "../internal/web")
	return l
}

func (l *literals) take(n ast.Node, path string) {
	switch n := n.(type) {
	case *ast.BasicLit:
		if s, ok := text(n); ok {
			l.texts = append(l.texts, s)
		}
	case *ast.BinaryExpr:
		if left, ok := text(n.X); ok {
			if right, ok := text(n.Y); ok {
				l.texts = append(l.texts, left+right) // one message on two lines
			}
		}
	case *ast.CallExpr:
		// cnierror.New(code, reason, ...) and conditions.set(type, healthy, reason, ...)
		if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "New" && isNamed(f.X, "cnierror") {
			l.reason(n.Args[1], path)
		}
		if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "set" && len(n.Args) == 4 {
			l.reason(n.Args[2], path)
		}
		// exhausted(reason, ...) of address pools, ports and egress, and their events
		if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "exhausted" && (strings.HasSuffix(filepath.Dir(path), "source/pool") || strings.HasSuffix(filepath.Dir(path), "node/nics") || strings.HasSuffix(filepath.Dir(path), "node/podegress")) {
			l.reason(n.Args[0], path)
		}
		if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Eventf" && len(n.Args) > 3 {
			l.reason(n.Args[3], path)
		}
	case *ast.ReturnStmt:
		// trouble() (reason, message string, err error)
		if strings.HasSuffix(path, "source/nodenetworksupplier/observed.go") && len(n.Results) == 3 {
			l.reason(n.Results[0], path)
		}
	case *ast.KeyValueExpr:
		if k, ok := n.Key.(*ast.Ident); ok && k.Name == "Reason" {
			l.reason(n.Value, path)
		}
		if k, ok := n.Key.(*ast.SelectorExpr); ok && strings.HasSuffix(path, "source/enisource/nodemode.go") && k.Sel != nil {
			l.reason(n.Value, path) // the map from a class of trouble to a reason
		}
	case *ast.ValueSpec:
		for i, name := range n.Names {
			if i < len(n.Values) && reasonConst.MatchString(name.Name) {
				l.reason(n.Values[i], path)
			}
		}
	case *ast.AssignStmt:
		for i, to := range n.Lhs {
			if name, ok := to.(*ast.Ident); ok && name.Name == "reason" && len(n.Rhs) == len(n.Lhs) {
				l.reason(n.Rhs[i], path)
			}
		}
		if f, ok := n.Lhs[0].(*ast.SelectorExpr); ok && f.Sel.Name == "Reason" && strings.Contains(path, "internal/node/daemon") {
			l.reason(n.Rhs[0], path)
		}
	}
}

func isNamed(e ast.Expr, name string) bool {
	ident, ok := e.(*ast.Ident)
	return ok && ident.Name == name
}

// reasonConst matches names of constants that are reasons or conditions.
var reasonConst = regexp.MustCompile(`^([Rr]eason[A-Z]|Condition|Growing$)`)

// reason records a literal. Constants and variables are recorded where they are set.
func (l *literals) reason(e ast.Expr, path string) {
	if s, ok := text(e); ok && s != "" && !strings.ContainsAny(s, " %") {
		l.reasons[s] = path
	}
}

func text(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(lit.Value)
	return s, err == nil
}

// The pages of docs/troubleshoot and docs/alerts explain every reason of a failed call, of a shortage and of a condition.
func TestEveryReasonIsExplained(t *testing.T) {
	page := folder(t, "troubleshoot") + folder(t, "alerts")
	reasons := readCode(t).reasons
	for _, known := range []string{
		"subnet-full", "unreachable", "throttled", "growing", "netns-missing", "DropPolicy", "ForwardingAllowed", "panic",
		"no-object", "no-operator", "InvalidSpec", "NotObserved", "InDeficit", "NetworkHealed",
	} {
		if reasons[known] == "" {
			t.Errorf("this test no longer finds %s in the code", known)
		}
	}
	// The operator derives condition reasons from these.
	for class := cloud.Unknown; !strings.HasPrefix(class.String(), "class("); class++ {
		if class != cloud.Bug && class != cloud.Gone { // these two have other names, which are found in the code
			reasons[camel(class.String())] = "cloud.Class"
		}
	}
	for _, shortage := range []string{plan.ReasonCooling, plan.ReasonENILimit, plan.ReasonMaxPods, plan.ReasonSubnetFull} {
		reasons[camel(shortage)] = "plan.Shortage"
	}
	for reason, where := range reasons {
		if !strings.Contains(page, "`"+reason+"`") {
			t.Errorf("docs/troubleshoot and docs/alerts do not explain %s of %s", reason, where)
		}
	}
}

// camel converts subnet-full to SubnetFull.
func camel(s string) string {
	var out strings.Builder
	for word := range strings.SplitSeq(s, "-") {
		out.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return out.String()
}

// Messages quoted in the tables of the page exist in the programs. Placeholders in the code (%s, %d, ...) and the ends
// of literals correspond to … in the page.
func TestQuotedMessagesExist(t *testing.T) {
	verbs := regexp.MustCompile(`%[+#]?[a-z]`)
	var code strings.Builder
	for _, s := range readCode(t).texts {
		code.WriteString(verbs.ReplaceAllString(s, "\x00"))
		code.WriteByte('\n')
	}
	objects, err := deploy.Render(deploy.InMode(deploy.OperatorMode, "test"))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects { // messages that the API server returns for Berth
		for _, s := range texts(o.Object) {
			code.WriteString(s + "\n")
		}
	}
	quoted := 0
	for _, line := range strings.Split(folder(t, "troubleshoot"), "\n") {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(line, -1) {
			if !strings.HasPrefix(line, "|") && !strings.Contains(m[1], "…") || !isMessage(m[1]) {
				continue
			}
			quoted++
			for _, part := range strings.Split(m[1], "…") {
				if part = strings.TrimSpace(part); part != "" && !strings.Contains(code.String(), part) {
					t.Errorf("no program has the message %q, part of %q", part, m[1])
				}
			}
		}
	}
	if quoted < 50 {
		t.Errorf("only %d messages were compared", quoted)
	}
}

// texts returns all strings in a value.
func texts(v any) (out []string) {
	switch v := v.(type) {
	case string:
		out = append(out, v)
	case []any:
		for _, e := range v {
			out = append(out, texts(e)...)
		}
	case map[string]any:
		for _, e := range v {
			out = append(out, texts(e)...)
		}
	}
	return out
}

// isMessage distinguishes a sentence from a name, a flag or a command.
func isMessage(s string) bool {
	return strings.Count(s, " ") >= 2 && !regexp.MustCompile(`^(ls|df|ip|nft|nstat|ping|kubectl|berthctl) `).MatchString(s)
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
