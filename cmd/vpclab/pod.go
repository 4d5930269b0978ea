package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/control"
	"github.com/berthnet/berth/lab/run/node"
)

func newPod() *cobra.Command {
	c := &cobra.Command{
		Use:   "pod",
		Short: "Add, remove and list pods",
		Long: `Add, remove and list pods. A pod is a network namespace that a runtime would make
for it, wired by the real plugin through libcni, with an echo server inside:
TCP and UDP on port 7777, HTTP on 8080.`,
	}
	c.AddCommand(newPodAdd(), newPodDel(), newPodList())
	return c
}

func newPodAdd() *cobra.Command {
	c := &cobra.Command{
		Use:   "add NODE [NAME...]",
		Short: "Add pods to a node",
		Example: `  vpclab pod add node-1
  vpclab pod add node-1 web --port 30080:8080/tcp
  vpclab pod add node-2 --count 8
  vpclab pod add node-1 db --annotation 'berth.dev/nics=[{subnet: subnet-1, ip: 192.168.0.12}]'`,
		Args: cobra.MinimumNArgs(1),
	}
	namespace := c.Flags().StringP("namespace", "n", "default", "Kubernetes `namespace` of the pod")
	ports := c.Flags().StringArray("port", nil, "`HOST:POD[/tcp|udp]` for the portmap plugin (repeatable)")
	annotations := c.Flags().StringArray("annotation", nil, "`KEY=VALUE` of the pod's object (repeatable)")
	count := c.Flags().Int("count", 1, "how many pods, the named ones included")
	timeout := c.Flags().Duration("timeout", 90*time.Second, "how long each may take; failures are tried again until then, as a kubelet does")
	return labCommand(c, func(cmd *cobra.Command, lab *control.Client, args []string) error {
		mappings, err := parsePorts(*ports)
		if err != nil {
			return err
		}
		annotated, err := parseAnnotations(*annotations)
		if err != nil {
			return err
		}
		names := args[1:]
		for len(names) < max(*count, 1) {
			names = append(names, "") // the lab chooses
		}
		var errs []error
		for _, name := range names {
			p, err := lab.AddPod(cmd.Context(), control.PodRequest{
				Node: args[0], Name: name, Namespace: *namespace, Ports: mappings, Annotations: annotated, Timeout: timeout.String(),
			})
			if err != nil {
				errs = append(errs, err)
				continue
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s/%s  %s  in %s\n", args[0], p.Name, strings.Join(p.Addresses, ","), p.Took)
		}
		return errors.Join(errs...)
	})
}

func parseAnnotations(in []string) (map[string]string, error) {
	out := map[string]string{}
	for _, s := range in {
		key, value, ok := strings.Cut(s, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("--annotation %q: want KEY=VALUE", s)
		}
		out[key] = value
	}
	return out, nil
}

func parsePorts(in []string) ([]node.PortMapping, error) {
	var out []node.PortMapping
	for _, s := range in {
		ports, proto, ok := strings.Cut(s, "/")
		if !ok {
			proto = "tcp"
		}
		host, pod, ok := strings.Cut(ports, ":")
		h, err1 := strconv.ParseUint(host, 10, 16)
		p, err2 := strconv.ParseUint(pod, 10, 16)
		if !ok || err1 != nil || err2 != nil || proto != "tcp" && proto != "udp" {
			return nil, fmt.Errorf("--port %q: want HOST:POD, HOST:POD/tcp or HOST:POD/udp", s)
		}
		out = append(out, node.PortMapping{HostPort: int(h), ContainerPort: int(p), Protocol: proto})
	}
	return out, nil
}

func newPodDel() *cobra.Command {
	return labCommand(&cobra.Command{
		Use:     "del NODE NAME...",
		Aliases: []string{"delete", "rm"},
		Short:   "Remove pods from a node",
		Args:    cobra.MinimumNArgs(2),
	}, func(cmd *cobra.Command, lab *control.Client, args []string) error {
		var errs []error
		for _, name := range args[1:] {
			if err := lab.DelPod(cmd.Context(), args[0], name); err != nil {
				errs = append(errs, err)
				continue
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s/%s removed\n", args[0], name)
		}
		return errors.Join(errs...)
	})
}

func newPodList() *cobra.Command {
	return labCommand(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List pods",
		Args:    cobra.NoArgs,
	}, func(cmd *cobra.Command, client *control.Client, _ []string) error {
		s, err := client.Status(cmd.Context())
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
		podTable(w, s, "ENI\tINDEX\tNETNS", func(p lab.PodStatus) string { return fmt.Sprintf("%s\t%d\t%s", p.ENI, p.DeviceIndex, p.Netns) })
		return w.Flush()
	})
}
