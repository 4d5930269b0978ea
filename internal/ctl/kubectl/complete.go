package kubectl

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Completion asks for names only, and not for long.
const (
	completeWithin = 3 * time.Second
	completeMost   = 1000
)

// names lists the names of what is at a path, without its contents. Trouble is
// silence: there is nobody to tell.
func (p *program) names(ctx context.Context, path string) (out []string) {
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	a, err := p.connect()
	if err != nil {
		return nil
	}
	var list metav1.PartialObjectMetadataList
	req := a.rest.Get().AbsPath(path).Param("limit", strconv.Itoa(completeMost)).
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
	if err := into(ctx, req, &list); err != nil {
		return nil
	}
	for _, o := range list.Items {
		out = append(out, o.Name)
	}
	return out
}

func starting(names []string, with string) ([]string, cobra.ShellCompDirective) {
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, with) })
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (p *program) completeNode(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return starting(p.names(cmd.Context(), nodesPath), typed)
}

func (p *program) completePool(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	names := p.names(cmd.Context(), poolsPath)
	return starting(slices.DeleteFunc(names, func(n string) bool { return slices.Contains(args, n) }), typed)
}

func (p *program) completeVPC(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	names := p.names(cmd.Context(), vpcsPath)
	return starting(slices.DeleteFunc(names, func(n string) bool { return slices.Contains(args, n) }), typed)
}

func (p *program) completeNamespace(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	return starting(p.names(cmd.Context(), namespacesPath), typed)
}

func (p *program) completeContext(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	raw, err := p.Loader().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for name := range raw.Contexts {
		names = append(names, name)
	}
	slices.Sort(names)
	return starting(names, typed)
}

// completePod completes NAMESPACE/NAME, and NAME of the chosen namespace.
func (p *program) completePod(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return p.completeIn(cmd, podsPath, typed)
}

// completeEgress does so for Egresses.
func (p *program) completeEgress(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	return p.completeIn(cmd, egressesIn, typed)
}

// completeIn completes what has its path in a namespace.
func (p *program) completeIn(cmd *cobra.Command, path func(namespace string) string, typed string) ([]string, cobra.ShellCompDirective) {
	of := func(ns, prefix string) (out []string) {
		for _, n := range p.names(cmd.Context(), path(ns)) {
			out = append(out, prefix+n)
		}
		return out
	}
	if ns, _, ok := strings.Cut(typed, "/"); ok {
		return starting(of(ns, ns+"/"), typed)
	}
	var all []string
	if ns, err := p.namespace(); err == nil {
		all = of(ns, "")
	}
	for _, ns := range p.names(cmd.Context(), namespacesPath) {
		all = append(all, ns+"/")
	}
	names, directive := starting(all, typed)
	return names, directive | cobra.ShellCompDirectiveNoSpace
}
