#!/usr/bin/env bash
# build_apiserver.sh FOLDER: puts kube-apiserver 1.20.2 and etcd 3.4 into FOLDER, for the tests marked `gateway`.
#
# Nobody packages the server of Kubernetes for pip or apt, but Debian 12 has its source (package `kubernetes`), etcd and
# the Go compiler of its time. The packages are fetched and unpacked into a scratch folder, so nothing is installed and
# no root is needed. It takes 7 minutes of CPU time and 3 GB of scratch space; 130 MB remain.
set -euo pipefail

OUT=$(mkdir -p "$1" && cd "$1" && pwd)
WORK=$(mktemp -d "$OUT/scratch.XXXXXX")
trap 'chmod -R u+w "$WORK" && rm -rf "$WORK"' EXIT
VERSION=1.20.2

# apt with lists and caches of its own, so that the system's are left alone, and with the sources of the same archive.
mkdir -p "$WORK"/apt/{parts,state/lists/partial,cache/archives/partial} "$WORK/debian" "$WORK/go/src/k8s.io"
sed 's/^Types: deb$/Types: deb deb-src/' /etc/apt/sources.list.d/debian.sources > "$WORK/apt/parts/debian.sources"
APT=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$WORK/apt/parts" -o "Dir::State=$WORK/apt/state"
     -o "Dir::Cache=$WORK/apt/cache" -o Dir::State::status=/var/lib/dpkg/status -o "APT::Sandbox::User=$(id -un)")
cd "$WORK"
apt-get "${APT[@]}" update
apt-get "${APT[@]}" download golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev etcd-server
apt-get "${APT[@]}" source --download-only kubernetes
for package in *.deb; do dpkg-deb -x "$package" debian; done
cp debian/usr/bin/etcd "$OUT/etcd"

tar xzf kubernetes_*.orig.tar.gz --exclude '*_test.go'
mv "kubernetes-$VERSION" go/src/k8s.io/kubernetes
cd go/src/k8s.io/kubernetes

# The vendored reflect2 1.0.1 crashes when compiled by Go 1.18 or newer; Debian packages 1.0.2.
REFLECT=vendor/github.com/modern-go/reflect2
rm -f $REFLECT/*.go $REFLECT/*.s
cp "$WORK"/debian/usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} $REFLECT/
rm -f $REFLECT/*_test.go

# Without a version the server calls itself v0.0.0, which the `kubeVersion` of charts refuses.
for file in staging/src/k8s.io/{component-base,client-go/pkg}/version/base.go; do
  sed -i -E -e "s#^(\s*gitVersion +)(string )?= .*#\1\2= \"v$VERSION\"#" \
    -e 's#^(\s*gitMajor) +string( = "")?#\1 string = "1"#' -e 's#^(\s*gitMinor) +string( = "")?#\1 string = "20"#' "$file"
done

export GOROOT="$WORK/debian/usr/lib/go-1.19" GOPATH="$WORK/go" GOCACHE="$WORK/cache" GO111MODULE=off CGO_ENABLED=0
export GOFLAGS=-trimpath
GO="$GOROOT/bin/go"

# The OpenAPI definitions are the only generated file that the tarball lacks.
"$GO" build -o "$WORK/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
STAGED=$(readlink -f vendor/k8s.io/{api,apimachinery,apiserver,apiextensions-apiserver,kube-aggregator,metrics,client-go})
FOLDERS=$(grep --include='*.go' -rl '+k8s:openapi-gen=' pkg $STAGED | xargs -n1 dirname |
  sed 's#^.*/staging/src/#k8s.io/kubernetes/vendor/#; s#^pkg/#k8s.io/kubernetes/pkg/#' | sort -u |
  grep -v -E 'code-generator|/examples?/|testdata' | paste -sd,)
PATH="$GOROOT/bin:$PATH" "$WORK/openapi-gen" --go-header-file vendor/k8s.io/code-generator/hack/boilerplate.go.txt \
  --output-base "$WORK/go/src" --input-dirs "$FOLDERS" \
  --output-package k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi -r "$WORK/report"

"$GO" build -ldflags '-s -w' -o "$OUT/kube-apiserver" ./cmd/kube-apiserver
"$OUT/kube-apiserver" --version
"$OUT/etcd" --version
