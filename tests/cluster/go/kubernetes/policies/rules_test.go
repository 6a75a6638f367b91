package policies

import (
	"net/netip"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func pod(namespace, name, address string, set map[string]string) *core.Pod {
	made := &core.Pod{ObjectMeta: meta.ObjectMeta{Namespace: namespace, Name: name, Labels: set}}
	made.Spec.NodeName = "here"
	made.Spec.Containers = []core.Container{{Ports: []core.ContainerPort{{Name: "link", ContainerPort: 7100, Protocol: core.ProtocolTCP}}}}
	made.Status.PodIP = address
	return made
}

func world(policies ...*networking.NetworkPolicy) *observed {
	return &observed{
		pods: []*core.Pod{
			pod("drafts", "draft", "10.0.0.1", map[string]string{"app": "draft"}),
			pod("chat", "target", "10.0.0.2", map[string]string{"app": "target"}),
			pod("other", "target", "10.0.0.3", map[string]string{"app": "target"}),
		},
		namespaces: map[string]labels.Set{"drafts": {"name": "drafts"}, "chat": {"name": "chat"}, "other": {"name": "other"}},
		policies:   policies,
	}
}

func ingress(peers []networking.NetworkPolicyPeer, ports []networking.NetworkPolicyPort) *networking.NetworkPolicy {
	made := &networking.NetworkPolicy{ObjectMeta: meta.ObjectMeta{Namespace: "drafts"}}
	made.Spec.PolicyTypes = []networking.PolicyType{networking.PolicyTypeIngress}
	made.Spec.PodSelector.MatchLabels = map[string]string{"app": "draft"}
	if peers != nil || ports != nil {
		made.Spec.Ingress = []networking.NetworkPolicyIngressRule{{From: peers, Ports: ports}}
	}
	return made
}

func lines(t *testing.T, o *observed) []string {
	t.Helper()
	rules, err := o.rules("here")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, line := range strings.Split(string(rules), "\n") {
		if strings.HasPrefix(line, "-A") && !strings.Contains(line, "conntrack") {
			found = append(found, line)
		}
	}
	return found
}

func expect(t *testing.T, found []string, wanted ...string) {
	t.Helper()
	if strings.Join(found, "\n") != strings.Join(wanted, "\n") {
		t.Errorf("rules are\n%s\nnot\n%s", strings.Join(found, "\n"), strings.Join(wanted, "\n"))
	}
}

func TestPodsThatNoPolicySelectsHaveNoRules(t *testing.T) {
	expect(t, lines(t, world()))
}

func TestAPolicyWithoutRulesDropsAllThatComes(t *testing.T) {
	expect(t, lines(t, world(ingress(nil, nil))),
		"-A FORWARD -d 10.0.0.1 ! -s 10.0.0.1 -j INGRESS-0",
		"-A INGRESS-0 -j DROP")
}

func TestAPeerIsSelectedByItsNamespaceAndItsOwnLabels(t *testing.T) {
	named := intstr.FromString("link")
	peer := networking.NetworkPolicyPeer{
		NamespaceSelector: &meta.LabelSelector{MatchLabels: map[string]string{"name": "chat"}},
		PodSelector:       &meta.LabelSelector{MatchLabels: map[string]string{"app": "target"}},
	}
	policy := ingress([]networking.NetworkPolicyPeer{peer}, []networking.NetworkPolicyPort{{Port: &named}})
	expect(t, lines(t, world(policy)),
		"-A FORWARD -d 10.0.0.1 ! -s 10.0.0.1 -j INGRESS-0",
		"-A INGRESS-0 -s 10.0.0.2 -p tcp --dport 7100 -j RETURN",
		"-A INGRESS-0 -j DROP")
}

func TestWithoutANamespaceSelectorPeersAreOfThePolicysNamespace(t *testing.T) {
	peer := networking.NetworkPolicyPeer{PodSelector: &meta.LabelSelector{}}
	expect(t, lines(t, world(ingress([]networking.NetworkPolicyPeer{peer}, nil))),
		"-A FORWARD -d 10.0.0.1 ! -s 10.0.0.1 -j INGRESS-0",
		"-A INGRESS-0 -s 10.0.0.1 -j RETURN",
		"-A INGRESS-0 -j DROP")
}

func TestExceptionsOfABlockAreNotAllowed(t *testing.T) {
	block := networking.NetworkPolicyPeer{IPBlock: &networking.IPBlock{CIDR: "10.0.0.0/8", Except: []string{"10.1.0.0/16"}}}
	expect(t, lines(t, world(ingress([]networking.NetworkPolicyPeer{block}, nil))),
		"-A FORWARD -d 10.0.0.1 ! -s 10.0.0.1 -j INGRESS-0",
		"-A INGRESS-0 -s 10.0.0.0/8 -m iprange ! --src-range 10.1.0.0-10.1.255.255 -j RETURN",
		"-A INGRESS-0 -j DROP")
	first, last := bounds(netip.MustParsePrefix("10.2.3.5/30"))
	if first.String() != "10.2.3.4" || last.String() != "10.2.3.7" {
		t.Errorf("%s to %s", first, last)
	}
}

func TestPodsOfOtherNodesAndPodsThatEndedAreLeftAlone(t *testing.T) {
	o := world(ingress(nil, nil))
	o.pods[0].Spec.NodeName = "there"
	expect(t, lines(t, o))
	o.pods[0].Spec.NodeName = "here"
	o.pods[0].Status.Phase = core.PodSucceeded
	expect(t, lines(t, o))
}
