// Package policies enforces NetworkPolicies on one node with its packet filter.
package policies

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	core "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// Changes often come together, such as a pod's address with its labels.
const settle = 50 * time.Millisecond

// enforcer keeps the node's packet filter to what NetworkPolicies say.
type enforcer struct {
	node       string
	pods       core.PodLister
	namespaces core.NamespaceLister
	policies   policylisters.NetworkPolicyLister
	applied    []byte
}

// Main enforces NetworkPolicies on this node until told to stop. The network plugins do not, and the API server only
// keeps them.
func Main(arguments []string) {
	flags := flag.NewFlagSet("network-policies", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "who to be for the API server")
	node := flags.String("node", "", "name of the node")
	if err := flags.Parse(arguments); err != nil {
		log.Fatal(err)
	}
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if err := enforce(stop, *kubeconfig, *node); err != nil {
		log.Fatalf("cannot enforce network policies: %v", err)
	}
}

func enforce(stop context.Context, kubeconfig, node string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	watched := &enforcer{
		node:       node,
		pods:       factory.Core().V1().Pods().Lister(),
		namespaces: factory.Core().V1().Namespaces().Lister(),
		policies:   factory.Networking().V1().NetworkPolicies().Lister(),
	}
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { notify() },
		UpdateFunc: func(any, any) { notify() },
		DeleteFunc: func(any) { notify() },
	}
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().Pods().Informer(),
		factory.Core().V1().Namespaces().Informer(),
		factory.Networking().V1().NetworkPolicies().Informer(),
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	factory.Start(stop.Done())
	factory.WaitForCacheSync(stop.Done())
	for {
		select {
		case <-stop.Done():
			return nil
		case <-changed:
			time.Sleep(settle)
			if err := watched.apply(); err != nil {
				log.Printf("cannot apply network policies, trying again: %v", err)
				time.AfterFunc(time.Second, notify)
			}
		}
	}
}

// apply replaces the whole of a table that nobody else uses, if it is to change.
func (e *enforcer) apply() error {
	cluster, err := e.observe()
	if err != nil {
		return err
	}
	rules, err := cluster.rules(e.node)
	if err != nil {
		return err
	}
	if bytes.Equal(rules, e.applied) {
		return nil
	}
	restore := exec.Command("iptables-restore", "--wait", "--table", table)
	restore.Stdin = bytes.NewReader(rules)
	if output, err := restore.CombinedOutput(); err != nil {
		return fmt.Errorf("iptables-restore: %w: %s\n%s", err, output, rules)
	}
	e.applied = rules
	return nil
}

// observe is the cluster as the caches have it.
func (e *enforcer) observe() (*observed, error) {
	pods, err := e.pods.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	namespaces, err := e.namespaces.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	policies, err := e.policies.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	cluster := &observed{pods: pods, policies: policies, namespaces: map[string]labels.Set{}}
	for _, namespace := range namespaces {
		cluster.namespaces[namespace.Name] = namespace.Labels
	}
	return cluster, nil
}

// constrains tells whether a policy is about a direction.
func constrains(policy *networking.NetworkPolicy, direction networking.PolicyType) bool {
	for _, kind := range policy.Spec.PolicyTypes {
		if kind == direction {
			return true
		}
	}
	return false
}
