// Command policyreference decides about connections by the evaluator of kube-network-policies, to compare
// Berth's decisions with. It reads clusters as JSON values from its standard input and answers each with a list
// of true (allowed) and false.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	_ "unsafe" // for go:linkname

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
	npav1alpha1 "sigs.k8s.io/network-policy-api/apis/v1alpha1"
	npafake "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned/fake"
	npainformers "sigs.k8s.io/network-policy-api/pkg/client/informers/externalversions"
)

// cluster is one question.
type cluster struct {
	Namespaces []corev1.Namespace
	Pods       []corev1.Pod
	Policies   []networkingv1.NetworkPolicy
	// Admin and Baseline are ClusterNetworkPolicies as the kinds before them that the evaluator knows.
	Admin    []npav1alpha1.AdminNetworkPolicy
	Baseline []npav1alpha1.BaselineAdminNetworkPolicy
	Flows    []flow
}

type flow struct {
	Source, Destination net.IP
	Protocol            corev1.Protocol
	Port                int
}

// packet has the layout of the evaluator's own type.
type packet struct {
	id      uint32
	family  corev1.IPFamily
	srcIP   net.IP
	dstIP   net.IP
	proto   corev1.Protocol
	srcPort int
	dstPort int
	payload []byte
}

//go:linkname evaluate sigs.k8s.io/kube-network-policies/pkg/networkpolicy.(*Controller).evaluatePacket
func evaluate(c *networkpolicy.Controller, ctx context.Context, p packet) bool

func main() {
	klog.InitFlags(nil)
	flag.Parse()
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var c cluster
		err := in.Decode(&c)
		if errors.Is(err, io.EOF) {
			return
		}
		var answer []bool
		if err == nil {
			answer, err = decide(c)
		}
		if err == nil {
			err = out.Encode(answer)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "policyreference:", err)
			os.Exit(1)
		}
	}
}

func decide(c cluster) ([]bool, error) {
	client, npaClient := fake.NewClientset(), npafake.NewSimpleClientset()
	core, npa := informers.NewSharedInformerFactory(client, 0), npainformers.NewSharedInformerFactory(npaClient, 0)
	policies, namespaces, pods := core.Networking().V1().NetworkPolicies(), core.Core().V1().Namespaces(), core.Core().V1().Pods()
	admin, baseline := npa.Policy().V1alpha1().AdminNetworkPolicies(), npa.Policy().V1alpha1().BaselineAdminNetworkPolicies()
	controller, err := networkpolicy.NewController(client, policies, namespaces, pods, core.Core().V1().Nodes(), npaClient, admin, baseline,
		networkpolicy.Config{AdminNetworkPolicy: true, BaselineAdminNetworkPolicy: true, NodeName: "node", NRIdisabled: true})
	if err != nil {
		return nil, err
	}
	// Without a plugin for NRI the evaluator cannot look up an address that no pod has.
	plugin := reflect.ValueOf(controller).Elem().FieldByName("nriPlugin")
	reflect.NewAt(plugin.Type(), plugin.Addr().UnsafePointer()).Elem().Set(reflect.New(plugin.Type().Elem()))
	for i := range c.Policies {
		err = errors.Join(err, policies.Informer().GetIndexer().Add(&c.Policies[i]))
	}
	for i := range c.Namespaces {
		err = errors.Join(err, namespaces.Informer().GetIndexer().Add(&c.Namespaces[i]))
	}
	for i := range c.Pods {
		err = errors.Join(err, pods.Informer().GetIndexer().Add(&c.Pods[i]))
	}
	for i := range c.Admin {
		err = errors.Join(err, admin.Informer().GetIndexer().Add(&c.Admin[i]))
	}
	for i := range c.Baseline {
		err = errors.Join(err, baseline.Informer().GetIndexer().Add(&c.Baseline[i]))
	}
	answer := make([]bool, len(c.Flows))
	for i, f := range c.Flows {
		answer[i] = evaluate(controller, context.Background(), packet{srcIP: f.Source, dstIP: f.Destination, proto: f.Protocol, dstPort: f.Port})
	}
	return answer, err
}
