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

// Limits of a completion request.
const (
	completeWithin = 3 * time.Second
	completeMost   = 1000
)

// completion completes arguments and flags for a shell.
type completion struct{ program *program }

// names lists the names of the objects at a path. It returns none on an error, because a shell
// could not show it.
func (c completion) names(ctx context.Context, path string) (out []string) {
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	a, err := c.program.connect()
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

func (c completion) node(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return starting(c.names(cmd.Context(), nodesPath), typed)
}

// others completes names at a path, except those that are already arguments.
func (c completion) others(path string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		names := c.names(cmd.Context(), path)
		return starting(slices.DeleteFunc(names, func(n string) bool { return slices.Contains(args, n) }), typed)
	}
}

func (c completion) namespaces(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	return starting(c.names(cmd.Context(), namespacesPath), typed)
}

func (c completion) contexts(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	raw, err := c.program.Loader().RawConfig()
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

// pod completes NAMESPACE/NAME, and NAME in the chosen namespace.
func (c completion) pod(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.in(cmd, podsPath, typed)
}

// ends completes two arguments that are pods.
func (c completion) ends(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.in(cmd, podsPath, typed)
}

// egress completes NAMESPACE/NAME, and NAME in the chosen namespace.
func (c completion) egress(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	return c.in(cmd, egressesIn, typed)
}

// in completes NAMESPACE/NAME, and NAME in the chosen namespace, for the kind at path.
func (c completion) in(cmd *cobra.Command, path func(namespace string) string, typed string) ([]string, cobra.ShellCompDirective) {
	of := func(ns, prefix string) (out []string) {
		for _, n := range c.names(cmd.Context(), path(ns)) {
			out = append(out, prefix+n)
		}
		return out
	}
	if ns, _, ok := strings.Cut(typed, "/"); ok {
		return starting(of(ns, ns+"/"), typed)
	}
	var all []string
	if ns, err := c.program.namespace(); err == nil {
		all = of(ns, "")
	}
	for _, ns := range c.names(cmd.Context(), namespacesPath) {
		all = append(all, ns+"/")
	}
	names, directive := starting(all, typed)
	return names, directive | cobra.ShellCompDirectiveNoSpace
}
