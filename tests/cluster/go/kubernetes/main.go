// Package main is Kubernetes in one executable: etcd, the control plane, the node's agents and kubectl.
//
// One link of one module instead of seven: the programs share most of their code. The program is chosen by the
// executable's name, so that links such as kubectl -> kubernetes work, or else by the first argument.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"foretoken.io/tests/cluster/kubernetes/policies"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var programs = map[string]func(){
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kube-apiserver":          func() { run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() { run(controllers.NewControllerManagerCommand()) },
	"kube-scheduler":          func() { run(scheduler.NewSchedulerCommand()) },
	"kubelet":                 func() { run(kubelet.NewKubeletCommand(context.Background())) },
	"kube-proxy":              func() { run(proxy.NewProxyCommand()) },
	"kubectl":                 func() { kubectlutil.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand())) },
	"network-policies":        func() { policies.Main(os.Args[1:]) },
	"credentials":             func() { credentials(os.Args[1:]) },
}

func run(command *cobra.Command) { os.Exit(cli.Run(command)) }

func main() {
	program, ok := programs[filepath.Base(os.Args[0])]
	if !ok && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		program, ok = programs[os.Args[0]]
	}
	if !ok {
		names := make([]string, 0, len(programs))
		for name := range programs {
			names = append(names, name)
		}
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "say which program to run: %s\n", strings.Join(names, ", "))
		os.Exit(64)
	}
	program()
}
