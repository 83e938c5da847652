// Package podlabels is a processor for what a scraper reads: it says of each GPU's series which pod, namespace and container it belongs
// to, and can leave off values that come faster than they are scraped.
//
// It promises that every series of a GPU comes once for each container that holds it (a GPU that nobody holds once, without those
// labels); that a series which changes hands ends before its successor begins, so that no sum counts a GPU twice; that series named as
// dcgm-exporter names them carry its labels and no others; and that metrics of anything but GPUs keep their labels. The labels stay for
// ten minutes after the pod unless another is given the GPU: the pod may have died of what the series tell.
//
// What it passes is bounded: labels that somebody makes up without end fill no exporter's memory.
//
// Of what a container has for itself it says the use in sum: pitcrew.container.gpu.*, from the GPUs that no other container holds. What each
// of several containers used of one GPU is not known here, so such a GPU counts for none of them.
//
// A value shared by several containers is the GPU's whole value in each of their series: what each of them used is not known here.
//
// Where a rank of a training job says which GPU it uses, the series also carry its rank, and where the API server says whose job the pod is,
// the job. It asks the kubelet aside and holds nothing up.
package podlabels
