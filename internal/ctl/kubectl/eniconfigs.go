package kubectl

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nodenetwork/template"
)

func newENIConfigs(p *program) *cobra.Command {
	var label, annotation string
	cmd := &cobra.Command{
		Use:   "eniconfigs",
		Short: "Print the ENIConfigs of the Amazon VPC CNI as NodeNetworkTemplates",
		Long: `Print the ENIConfigs of the Amazon VPC CNI as manifests of NodeNetworkTemplates, to
migrate from it. A template selects Nodes by the label that names their ENIConfig; the
template of the ENIConfig named default selects Nodes without the label. If Nodes name their
ENIConfig by an annotation, comments have the commands that label them.`,
		Example: `  kubectl berth eniconfigs --label topology.kubernetes.io/zone > templates.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := p.reach(cmd.Context())
			if err != nil {
				return err
			}
			configs, nodes := list[template.ENIConfig](cmd.Context(), a, "ENIConfigs", eniConfigsPath, nil), a.nodes(cmd.Context())
			if len(a.unread) > 0 {
				return fmt.Errorf("some objects could not be read: %s", strings.Join(a.unread, "; "))
			}
			if len(configs) == 0 {
				return errors.New("no ENIConfig of crd.k8s.amazonaws.com/v1alpha1 exists")
			}
			templates, err := template.FromENIConfigs(label, configs)
			if err != nil {
				return err
			}
			return writeTemplates(cmd.OutOrStdout(), templates, relabel(nodes, annotation, label))
		},
	}
	cmd.Flags().StringVar(&label, "label", template.ENIConfigKey, "key of the label of Nodes, the Amazon VPC CNI's ENI_CONFIG_LABEL_DEF")
	cmd.Flags().StringVar(&annotation, "annotation", template.ENIConfigKey, "key of the annotation of Nodes, the Amazon VPC CNI's ENI_CONFIG_ANNOTATION_DEF")
	return cmd
}

// relabel returns the commands that copy the annotation of Nodes to the label. In the Amazon
// VPC CNI the annotation takes precedence. A kubelet can write any text into annotations of
// its Node, so a value that is no valid label does not become part of a command.
func relabel(nodes []corev1.Node, annotation, label string) (commands []string) {
	for i := range nodes {
		n := &nodes[i]
		name, has := n.Annotations[annotation]
		switch {
		case !has || n.Labels[label] == name:
		case name == "" || len(validation.IsValidLabelValue(name)) > 0:
			commands = append(commands, fmt.Sprintf("Node %s names %q, which is not a valid label value", n.Name, name))
		default:
			commands = append(commands, fmt.Sprintf("kubectl label node %s %s=%s --overwrite", n.Name, label, name))
		}
	}
	slices.Sort(commands)
	return commands
}

func writeTemplates(w io.Writer, templates []v1alpha1.NodeNetworkTemplate, commands []string) error {
	var b strings.Builder
	if len(commands) > 0 {
		b.WriteString("# These Nodes name their ENIConfig by an annotation. Before you apply the templates, run:\n#   " + strings.Join(commands, "\n#   ") + "\n")
	}
	for i := range templates {
		text, err := yaml.Marshal(&templates[i])
		if err != nil {
			return fmt.Errorf("write NodeNetworkTemplate %s: %w", templates[i].Name, err)
		}
		b.WriteString("---\n")
		b.Write(text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
