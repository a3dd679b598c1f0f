terraform {
  required_version = ">= 1.7" # mock_provider, by which tests/ runs without AWS

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 6.0" # data.aws_region has the attribute region
    }
  }
}
