package policies

import (
	"bytes"
	"fmt"
	"net/netip"
	"sort"
	"strings"

	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Neither kube-proxy nor the kubelet nor a network plugin has rules in this one.
const table = "security"

// observed is what rules follow from.
type observed struct {
	pods       []*core.Pod
	namespaces map[string]labels.Set
	policies   []*networking.NetworkPolicy
}

// allowance is one thing that a policy allows, to or from a pod that it selects.
type allowance struct {
	peers []networking.NetworkPolicyPeer
	ports []networking.NetworkPolicyPort
}

// direction is what differs between traffic to a pod and from it.
type direction struct {
	kind      networking.PolicyType
	own, peer string // iptables' options for the pod's own address and for the other one
	allowed   func(*networking.NetworkPolicy) []allowance
}

var directions = []direction{
	{networking.PolicyTypeEgress, "-s", "-d", func(policy *networking.NetworkPolicy) (all []allowance) {
		for _, rule := range policy.Spec.Egress {
			all = append(all, allowance{rule.To, rule.Ports})
		}
		return all
	}},
	{networking.PolicyTypeIngress, "-d", "-s", func(policy *networking.NetworkPolicy) (all []allowance) {
		for _, rule := range policy.Spec.Ingress {
			all = append(all, allowance{rule.From, rule.Ports})
		}
		return all
	}},
}

// rules is a table for iptables-restore: for each pod of the node and direction that policies are about, a chain that
// returns what some policy allows and drops the rest. Traffic of the node itself does not pass here.
func (o *observed) rules(node string) ([]byte, error) {
	var chains, jumps, bodies bytes.Buffer
	pods := make([]*core.Pod, 0, len(o.pods))
	for _, pod := range o.pods {
		if hasNetwork(pod) {
			pods = append(pods, pod)
		}
	}
	sort.Slice(pods, func(i, j int) bool { return pods[i].Status.PodIP < pods[j].Status.PodIP })
	for index, pod := range pods {
		if pod.Spec.NodeName != node {
			continue
		}
		for _, direction := range directions {
			body, constrained, err := o.chain(pod, pods, direction)
			if err != nil {
				return nil, err
			}
			if !constrained {
				continue
			}
			name := fmt.Sprintf("%s-%d", strings.ToUpper(string(direction.kind)), index)
			address := pod.Status.PodIP
			fmt.Fprintf(&chains, ":%s - [0:0]\n", name)
			fmt.Fprintf(&jumps, "-A FORWARD %s %s ! %s %s -j %s\n", direction.own, address, direction.peer, address, name)
			for _, line := range body {
				fmt.Fprintf(&bodies, "-A %s %s\n", name, line)
			}
			fmt.Fprintf(&bodies, "-A %s -j DROP\n", name)
		}
	}
	var all bytes.Buffer
	fmt.Fprintf(&all, "*%s\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n%s", table, &chains)
	fmt.Fprintf(&all, "-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT\n%s%sCOMMIT\n", &jumps, &bodies)
	return all.Bytes(), nil
}

// chain is what policies allow to or from a pod, and whether there are any about it.
func (o *observed) chain(pod *core.Pod, pods []*core.Pod, direction direction) (lines []string, constrained bool, err error) {
	for _, policy := range o.policies {
		if policy.Namespace != pod.Namespace || !constrains(policy, direction.kind) {
			continue
		}
		selects, err := matches(&policy.Spec.PodSelector, pod.Labels)
		if err != nil {
			return nil, false, err
		}
		if !selects {
			continue
		}
		constrained = true
		for _, allowed := range direction.allowed(policy) {
			more, err := o.allow(policy.Namespace, pod, pods, allowed, direction)
			if err != nil {
				return nil, false, err
			}
			lines = append(lines, more...)
		}
	}
	return lines, constrained, nil
}

// allow is the conditions under which one rule of a policy lets packets pass.
func (o *observed) allow(namespace string, pod *core.Pod, pods []*core.Pod, allowed allowance, direction direction) ([]string, error) {
	toPod := direction.kind == networking.PolicyTypeIngress
	// Whose names of ports are meant: the pod's own, or each other one's.
	var server *core.Pod
	if toPod {
		server = pod
	}
	var lines []string
	if len(allowed.peers) == 0 {
		for _, port := range portMatches(allowed.ports, server) {
			lines = append(lines, port+"-j RETURN")
		}
	}
	for _, peer := range allowed.peers {
		if peer.IPBlock != nil {
			block, err := blockMatch(peer.IPBlock, direction)
			if err != nil {
				return nil, err
			}
			for _, port := range portMatches(allowed.ports, server) {
				lines = append(lines, block+port+"-j RETURN")
			}
			continue
		}
		for _, other := range pods {
			selected, err := o.selects(peer, namespace, other)
			if err != nil {
				return nil, err
			}
			if !selected {
				continue
			}
			if !toPod {
				server = other
			}
			for _, port := range portMatches(allowed.ports, server) {
				lines = append(lines, fmt.Sprintf("%s %s %s-j RETURN", direction.peer, other.Status.PodIP, port))
			}
		}
	}
	return lines, nil
}

// blockMatch is iptables' options for a range of addresses less its exceptions.
func blockMatch(block *networking.IPBlock, direction direction) (string, error) {
	side := "--src-range"
	if direction.peer == "-d" {
		side = "--dst-range"
	}
	match := fmt.Sprintf("%s %s ", direction.peer, block.CIDR)
	for _, except := range block.Except {
		prefix, err := netip.ParsePrefix(except)
		if err != nil {
			return "", err
		}
		first, last := bounds(prefix)
		match += fmt.Sprintf("-m iprange ! %s %s-%s ", side, first, last)
	}
	return match, nil
}

// bounds are the first and the last address of a range.
func bounds(prefix netip.Prefix) (first, last netip.Addr) {
	first = prefix.Masked().Addr()
	bytes := first.AsSlice()
	for bit := prefix.Bits(); bit < first.BitLen(); bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ = netip.AddrFromSlice(bytes)
	return first, last
}

// selects tells whether a peer of a policy in a namespace is a pod.
func (o *observed) selects(peer networking.NetworkPolicyPeer, namespace string, pod *core.Pod) (bool, error) {
	if peer.NamespaceSelector == nil {
		if pod.Namespace != namespace {
			return false, nil
		}
	} else if found, err := matches(peer.NamespaceSelector, o.namespaces[pod.Namespace]); err != nil || !found {
		return false, err
	}
	if peer.PodSelector == nil {
		return true, nil
	}
	return matches(peer.PodSelector, pod.Labels)
}

// portMatches is iptables' options for some ports of a server; one that is empty if any will do.
func portMatches(ports []networking.NetworkPolicyPort, server *core.Pod) []string {
	if len(ports) == 0 {
		return []string{""}
	}
	var found []string
	for _, port := range ports {
		protocol := core.ProtocolTCP
		if port.Protocol != nil {
			protocol = *port.Protocol
		}
		name := strings.ToLower(string(protocol))
		switch {
		case port.Port == nil:
			found = append(found, fmt.Sprintf("-p %s ", name))
		case port.Port.Type == intstr.String:
			for _, number := range namedPorts(server, port.Port.StrVal, protocol) {
				found = append(found, fmt.Sprintf("-p %s --dport %d ", name, number))
			}
		case port.EndPort != nil:
			found = append(found, fmt.Sprintf("-p %s --dport %d:%d ", name, port.Port.IntVal, *port.EndPort))
		default:
			found = append(found, fmt.Sprintf("-p %s --dport %d ", name, port.Port.IntVal))
		}
	}
	return found
}

// namedPorts are the numbers of a pod's ports of a name; none if no pod is meant.
func namedPorts(pod *core.Pod, name string, protocol core.Protocol) (numbers []int32) {
	if pod == nil {
		return nil
	}
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.Name == name && port.Protocol == protocol {
				numbers = append(numbers, port.ContainerPort)
			}
		}
	}
	return numbers
}

func matches(selector *meta.LabelSelector, set labels.Set) (bool, error) {
	parsed, err := meta.LabelSelectorAsSelector(selector)
	if err != nil {
		return false, err
	}
	return parsed.Matches(set), nil
}

// hasNetwork tells whether an address is a pod's own.
func hasNetwork(pod *core.Pod) bool {
	ended := pod.Status.Phase == core.PodSucceeded || pod.Status.Phase == core.PodFailed
	return pod.Status.PodIP != "" && !pod.Spec.HostNetwork && !ended
}
