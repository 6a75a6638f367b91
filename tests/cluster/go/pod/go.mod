module foretoken.io/tests/cluster/pod

go 1.26
