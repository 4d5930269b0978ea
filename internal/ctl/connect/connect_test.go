package connect

import (
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
)

func TestGiven(t *testing.T) {
	t.Setenv(clientcmd.RecommendedConfigPathEnvVar, "")
	for arg, want := range map[string]bool{
		"--kubeconfig=a": true, "--context=a": true, "--cluster=a": true, "--server=https://a": true,
		"--namespace=a": false, "--token=a": false,
	} {
		var f Flags
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.Register(flags)
		if err := flags.Parse([]string{arg}); err != nil {
			t.Fatal(err)
		}
		if f.Given() != want {
			t.Errorf("%s: Given() = %t, want %t", arg, f.Given(), want)
		}
	}
}
