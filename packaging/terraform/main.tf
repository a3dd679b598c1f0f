# What healthd needs at AWS: the policies of packaging/iam, which are made from healthd's own table of calls, on your
# roles; a bucket for evidence and a bus for events where you ask for them. docs/how-to/deploy.md shows its use.

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}

locals {
  acts_on_nodes = var.platform != null && var.act_from == "node"

  node_policies = toset(concat(
    local.acts_on_nodes ? ["${var.platform}-node"] : [],
    var.evidence != null ? ["evidence-node"] : [],
    var.events != null ? ["events-node"] : [],
  ))
  has_controller = length(var.controller_roles) > 0
  controller_policies = toset(concat(
    local.has_controller && var.platform != null ? ["${var.platform}-controller"] : [],
    [for feature in var.controller_features : "${feature}-controller" if local.has_controller],
  ))

  partition = data.aws_partition.current.partition
  here      = "${data.aws_region.current.region}:${data.aws_caller_identity.current.account_id}"

  # packaging/iam leaves words in capital letters open. A text that still has one is refused below.
  policies = {
    for name in setunion(local.node_policies, local.controller_policies) : name => jsonencode(jsondecode(
      replace(replace(replace(replace(replace(file("${path.module}/../iam/${name}.json"),
        "arn:PARTITION:", "arn:${local.partition}:"),
        ":REGION:ACCOUNT:", ":${local.here}:"),
        "cluster/CLUSTER_ID", "cluster/${coalesce(var.hyperpod_cluster_id, "CLUSTER_ID")}"),
        "event-bus/BUS", "event-bus/${try(var.events.bus, "BUS")}"),
      "BUCKET/PREFIX", "${try(var.evidence.bucket, "BUCKET")}/${try(var.evidence.prefix, "PREFIX")}")
    ))
  }

  attachments = merge(
    { for pair in setproduct(local.node_policies, var.node_roles) : "${pair[0]} ${pair[1]}" => pair },
    { for pair in setproduct(local.controller_policies, var.controller_roles) : "${pair[0]} ${pair[1]}" => pair },
  )
}

resource "aws_iam_policy" "this" {
  for_each = local.policies

  name        = "${var.name}-${each.key}"
  description = "healthd: packaging/iam/${each.key}.json"
  policy      = each.value
  tags        = var.tags

  lifecycle {
    precondition {
      condition     = !can(regex("PARTITION|REGION|ACCOUNT|CLUSTER_ID|BUCKET|PREFIX|/BUS\"", each.value))
      error_message = "The policy ${each.key} has a word that was not filled in. HyperPod needs hyperpod_cluster_id."
    }
  }
}

resource "aws_iam_role_policy_attachment" "this" {
  for_each = local.attachments

  role       = each.value[1]
  policy_arn = aws_iam_policy.this[each.value[0]].arn
}

# ---------------------------------------------------------------------------------------------------------------------
# a role for nodes that have none

resource "aws_iam_role" "node" {
  count = var.instance_profile ? 1 : 0

  name        = "${var.name}-node"
  description = "EC2 instances that run healthd"
  tags        = var.tags
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy_attachment" "node" {
  for_each = var.instance_profile ? local.node_policies : []

  role       = aws_iam_role.node[0].name
  policy_arn = aws_iam_policy.this[each.key].arn
}

resource "aws_iam_instance_profile" "node" {
  count = var.instance_profile ? 1 : 0

  name = "${var.name}-node"
  role = aws_iam_role.node[0].name
  tags = var.tags
}

# ---------------------------------------------------------------------------------------------------------------------
# the bucket for evidence

locals {
  bucket = try(var.evidence.create, false) ? var.evidence.bucket : null
}

resource "aws_s3_bucket" "evidence" {
  count = local.bucket == null ? 0 : 1

  bucket = local.bucket
  tags   = var.tags
}

resource "aws_s3_bucket_public_access_block" "evidence" {
  count = local.bucket == null ? 0 : 1

  bucket                  = aws_s3_bucket.evidence[0].id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "evidence" {
  count = local.bucket == null ? 0 : 1

  bucket = aws_s3_bucket.evidence[0].id
  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256" # with a key of KMS the nodes would need rights to it
    }
  }
}

# A role that may write one node's evidence may overwrite another's: the former version stays.
resource "aws_s3_bucket_versioning" "evidence" {
  count = local.bucket == null ? 0 : 1

  bucket = aws_s3_bucket.evidence[0].id
  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "evidence" {
  count = local.bucket == null ? 0 : 1

  bucket     = aws_s3_bucket.evidence[0].id
  depends_on = [aws_s3_bucket_versioning.evidence]

  rule {
    id     = "expire"
    status = "Enabled"
    filter {}
    expiration {
      days = var.evidence.expire_days
    }
    noncurrent_version_expiration {
      noncurrent_days = var.evidence.expire_days
    }
    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }
}

resource "aws_s3_bucket_policy" "evidence" {
  count = local.bucket == null ? 0 : 1

  bucket     = aws_s3_bucket.evidence[0].id
  depends_on = [aws_s3_bucket_public_access_block.evidence]
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "OnlyByTls"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource = [
        "arn:${local.partition}:s3:::${local.bucket}",
        "arn:${local.partition}:s3:::${local.bucket}/*",
      ]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })
}

# ---------------------------------------------------------------------------------------------------------------------
# the bus for events

resource "aws_cloudwatch_event_bus" "this" {
  count = try(var.events.create, false) ? 1 : 0

  name = var.events.bus
  tags = var.tags
}

resource "aws_cloudwatch_event_rule" "nodes" {
  count = try(var.events.target_arn, null) == null ? 0 : 1

  name           = "${var.name}-nodes"
  description    = "Nodes that healthd drained, repairs, released or handed over; no drills"
  event_bus_name = local.bus_name
  tags           = var.tags
  event_pattern = jsonencode(merge(
    {
      source      = ["healthd"]
      detail-type = [{ prefix = "healthd Node " }]
    },
    length(var.events.clusters) > 0 ? { detail = { cluster = var.events.clusters } } : {},
  ))
}

resource "aws_cloudwatch_event_target" "nodes" {
  count = try(var.events.target_arn, null) == null ? 0 : 1

  rule           = aws_cloudwatch_event_rule.nodes[0].name
  event_bus_name = local.bus_name
  arn            = var.events.target_arn
}

locals {
  bus_name = var.events == null ? null : try(aws_cloudwatch_event_bus.this[0].name, var.events.bus)
  bus_arn  = var.events == null ? null : "arn:${local.partition}:events:${local.here}:event-bus/${var.events.bus}"
}
