variable "name" {
  description = "The beginning of the names of all that this module makes: one for each cluster."
  type        = string
  default     = "healthd"

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{1,40}$", var.name))
    error_message = "name is 1 to 40 letters, digits, \"_\" and \"-\"."
  }
}

variable "platform" {
  description = "What reboots and replaces nodes, as in [provisioner] kind: null where healthd needs no right at AWS for it (observe, quarantine, HyperPod by scontrol). On EKS node groups: autoscaling."
  type        = string
  default     = null

  validation {
    condition     = var.platform == null || contains(["autoscaling", "ec2", "hyperpod", "parallelcluster", "pcs"], coalesce(var.platform, "ec2"))
    error_message = "platform is autoscaling, ec2, hyperpod, parallelcluster, pcs or null."
  }
}

variable "act_from" {
  description = "As in [provisioner] act_from: node, or controller, with which the nodes get no right to reboot or replace anything."
  type        = string
  default     = "node"

  validation {
    condition     = contains(["node", "controller"], var.act_from)
    error_message = "act_from is node or controller."
  }
}

variable "node_roles" {
  description = "Names of existing roles of the nodes, to which the policies are attached."
  type        = set(string)
  default     = []
}

variable "controller_roles" {
  description = "Names of existing roles of the machine or pod that runs healthd controller."
  type        = set(string)
  default     = []
}

variable "instance_profile" {
  description = "Whether to make a role for EC2 instances, with an instance profile, that has the policies of a node."
  type        = bool
  default     = false
}

variable "hyperpod_cluster_id" {
  description = "Of HyperPod: the id at the end of the cluster's ARN."
  type        = string
  default     = null
}

variable "controller_features" {
  description = "What the controller also reads: topology ([ledger] aws_topology), ultraservers (HyperPod's UltraServers)."
  type        = set(string)
  default     = []

  validation {
    condition     = length(setsubtract(var.controller_features, ["topology", "ultraservers"])) == 0
    error_message = "controller_features are topology and ultraservers."
  }
}

variable "evidence" {
  description = "The bucket for [evidence] upload_to. create = false: the bucket is there, and only the right to write below the prefix is made. expire_days: when evidence expires; the versioned bucket deletes it for good after as many days more."
  type = object({
    bucket      = string
    prefix      = optional(string, "healthd")
    create      = optional(bool, true)
    expire_days = optional(number, 365)
  })
  default = null

  validation {
    condition     = var.evidence == null || can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.evidence.bucket))
    error_message = "evidence.bucket is the name of a bucket: 3 to 63 lower-case letters, digits, \".\" and \"-\"."
  }
  validation {
    condition     = var.evidence == null || can(regex("^[A-Za-z0-9][A-Za-z0-9._/-]*[A-Za-z0-9]$", var.evidence.prefix))
    error_message = "evidence.prefix begins and ends with a letter or digit: healthd writes PREFIX/NODE/REMEDIATION.tar.gz."
  }
}

variable "events" {
  description = "The bus for [notify] eventbridge_bus. create = false: the bus is there. target_arn: where a rule sends the events of nodes, without drills; the target's own policy must allow events.amazonaws.com."
  type = object({
    bus        = string
    create     = optional(bool, true)
    target_arn = optional(string)
    clusters   = optional(list(string), [])
  })
  default = null

  validation {
    condition     = var.events == null || can(regex("^[A-Za-z0-9._-]{1,256}$", var.events.bus)) && try(var.events.bus != "default" || !var.events.create, true)
    error_message = "events.bus is the name of a bus, not its ARN. The bus named default is there already: create = false."
  }
}

variable "tags" {
  description = "Tags of all that this module makes."
  type        = map(string)
  default     = {}
}
